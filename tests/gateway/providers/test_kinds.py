"""A new kind of provider is a decision wherever kinds differ: the type checker or a test asks for it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.config.router import ProviderKind
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import build_providers
from kitchener.gateway.routing import check_router
from tests.gateway.shared.gateway_kit import ask

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "kitchener"
KINDS = get_args(ProviderKind)
ASKED = {
    "config/embeddings.py: self.kind": "a kind of embeddings",
    "gateway/embedding_providers/configured_provider.py: settings.kind": "a kind of embeddings",
    "runtime/setting_checks.py: embeddings.kind": "a kind of embeddings",
    "gateway/routing.py: provider.kind": "policy code, whose text is part of the policy's identity; a test below asks for it",
}
"""What is compared with the word of a kind, and why. Other code asks a property of `ProviderConfig`, or matches all kinds."""


def compared(module: ast.AST) -> Iterator[str]:
    """Each `kind` that a module compares with the word of a kind of provider."""
    for each in ast.walk(module):
        if isinstance(each, ast.Compare) and isinstance(each.left, ast.Attribute) and each.left.attr == "kind":
            words = {node.value for node in ast.walk(each) if isinstance(node, ast.Constant)}
            if not words.isdisjoint(KINDS):
                yield ast.unparse(each.left)


def test_no_module_compares_a_kind_with_one_word() -> None:
    """Such a comparison sends a new kind the way of all others, and neither a test nor the type checker tells."""
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {each}"
        for path in PACKAGE.rglob("*.py")
        if any(f'"{kind}"' in (text := path.read_text(encoding="utf-8")) for kind in KINDS)
        for each in compared(ast.parse(text))
    }
    assert found == ASKED.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_not_built_in_names_what_it_needs(kind: Any) -> None:
    router = RouterConfig(providers={"it": ProviderConfig(kind=kind)})
    if ProviderConfig(kind=kind).is_built_in:
        check_router(router)
    else:
        with pytest.raises(ConfigError, match=f"kind '{kind}' needs"):
            check_router(router)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_that_is_not_built_in_calls_nothing_unless_models_may_be_called(kind: Any) -> None:
    """And needs neither a library nor a key."""
    router = RouterConfig(providers={"it": ProviderConfig(kind=kind, api_key="env:NOWHERE")}, allow_model_calls=False)
    async with build_providers(router) as providers:
        if ProviderConfig(kind=kind).is_built_in:
            assert (await providers["it"].complete(ask())).text
        else:
            with pytest.raises(ProviderError) as caught:
                await providers["it"].complete(ask())
            assert caught.value.reason == "forbidden"
