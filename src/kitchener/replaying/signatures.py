"""Checks the signatures of recorded projections with the public keys on record; a replay has no private key.

A `SIGNER_DECLARED` entry of HO2m says who signs the projections of all later turns. Roots recorded before that entry existed
have their public key in a signed head, `<ledger>.checkpoint`. Explained in `docs/proof.md`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kitchener.canonical import canonical_bytes
from kitchener.context.projection.record import UNSIGNED
from kitchener.ledger import StoredEntry
from kitchener.records.entries import SignerDeclaredPayload, payload_as
from kitchener.replaying.comparison import ABSENT, Difference
from kitchener.signing import is_public_key, is_signed, signer_id


class _DeclaredSigner(NamedTuple):
    seq: int
    """Number of the `SIGNER_DECLARED` entry in HO2m."""
    signer: str | None


class RecordedSigners:
    """The declared signers of an agent class, and the public keys on record.

    Args:
        declared: the `SIGNER_DECLARED` entries of HO2m, oldest first
        heads: public keys of the signed heads
    """

    def __init__(self, declared: Iterable[StoredEntry] = (), heads: Iterable[str] = ()) -> None:
        self._keys = {signer_id(key): key for key in heads}
        self._declared: list[_DeclaredSigner] = []
        for entry in declared:
            payload = payload_as(SignerDeclaredPayload, entry.payload)
            if is_public_key(key := payload["public_key"]):
                self._keys.setdefault(signer_id(str(key)), str(key))
            self._declared.append(_DeclaredSigner(entry.seq, payload["signer"]))

    def difference(self, payload: Mapping[str, object], before_seq: int) -> Difference | None:
        """What is wrong with the signature of a projection; None: nothing.

        Args:
            payload: the recorded payload, as it is stored
            before_seq: number of the entry in HO2m that began its turn

        Raises:
            SigningError: it is signed, and `cryptography` cannot be imported
        """
        authority = payload.get("authority", ABSENT)
        due = [each.signer for each in self._declared if each.seq < before_seq]
        if not isinstance(authority, dict):
            return Difference("authority", authority, due[-1] if due else "an object")
        signer, sig = authority.get("signer"), authority.get("sig")
        if due and signer != due[-1]:
            return Difference("authority.signer", signer, due[-1])
        if signer is None:
            return None if authority == UNSIGNED else Difference("authority", authority, UNSIGNED)
        if (key := self._keys.get(str(signer))) is None:
            return Difference(
                "authority.signer", signer, "a signer whose public key is on record; `kitchener ledger checkpoint`"
            )
        if authority.keys() != UNSIGNED.keys() or authority["tier"] != UNSIGNED["tier"]:
            return Difference("authority", authority, {**UNSIGNED, "signer": signer, "sig": sig})
        signed = canonical_bytes({name: value for name, value in payload.items() if name != "authority"}, at="payload")
        if is_signed(key, signed, str(sig)):
            return None
        return Difference("authority.sig", sig, f"a signature by {signer} over this payload")
