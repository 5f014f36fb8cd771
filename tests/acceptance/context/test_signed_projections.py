"""Decisions of the Context Authority are signed if a key is configured, and cost nothing otherwise (docs/proof.md)."""

from pathlib import Path

import pytest

from kitchener.canonical import canonical_bytes
from kitchener.config import HO2Config, LedgerConfig, RuntimeConfig
from kitchener.errors import SigningError
from kitchener.records.events import PROJECTION_COMPUTED
from kitchener.runtime import open_runtime
from kitchener.signing import is_signed, make_key
from tests.shared.payloads import payload_of


def config(root: Path, key: Path | None) -> RuntimeConfig:
    ledger = LedgerConfig(durability="none", signing_key=str(key) if key is not None else None)
    return RuntimeConfig(plane_root=str(root), ledger=ledger, agents={"ADMIN": HO2Config(context_mode="enforce")})


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_projection_is_signed_by_the_configured_key(tmp_path: Path, has_key: bool) -> None:
    signer = make_key(tmp_path / "signing.pem")
    async with open_runtime(config(tmp_path, tmp_path / "signing.pem" if has_key else None)) as runtime:
        await runtime.supervisor().handle_turn("hello")
        context = runtime.ledgers().context
        (entry,) = [each async for each in context.read(entry_type=PROJECTION_COMPUTED)]
    payload = dict(payload_of(entry))
    authority = payload.pop("authority")
    if has_key:
        assert (authority["tier"], authority["signer"]) == ("HO2", signer.signer)
        assert is_signed(signer.public_key, canonical_bytes(payload), authority["sig"])
    else:
        assert authority == {"tier": "HO2", "signer": None, "sig": None}


async def test_a_key_that_is_not_there_is_told_before_any_turn(tmp_path: Path) -> None:
    with pytest.raises(SigningError, match=r"nowhere\.pem: there is no such file"):
        async with open_runtime(config(tmp_path, tmp_path / "nowhere.pem")):
            pass
