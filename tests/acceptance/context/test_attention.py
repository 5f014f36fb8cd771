"""Attention gathers a session's past within budgets, hashes it, and fails open."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from kitchener import HO2Config
from kitchener.actors import AttentionContext, AttentionRetriever, ContextFragment
from kitchener.actors.attention.templates import load_templates, resolve_template
from kitchener.canonical import digest
from kitchener.errors import ConfigError
from kitchener.records import events
from tests.acceptance.conftest import OpenStack
from tests.acceptance.stack import QUESTION, Stack

RULES = ("Never delete files.", "Answer in English.")


async def talk(stack: Stack, *messages: str) -> str:
    """A session in which these messages were answered."""
    session_id = await stack.supervisor.start_session()
    for message in messages:
        await stack.turn(message, session_id=session_id)
    return session_id


async def test_horizontal_scan_returns_recent_entries(stack: Stack) -> None:
    """The scan finds this session's turns, oldest first, and none of another session."""
    session_id = await talk(stack, "first question", "second question")
    await talk(stack, "of another session")
    found = await stack.supervisor.attention.horizontal_scan(session_id, "anything")
    assert [fragment.content for fragment in found.fragments] == [
        "user: first question\nassistant: re: first question",
        "user: second question\nassistant: re: second question",
    ]
    assert {fragment.source for fragment in found.fragments} == {"HO2M"}
    completed = await stack.payloads(events.TURN_COMPLETED, session_id=session_id)
    assert [fragment.source_id for fragment in found.fragments] == [payload["turn_id"] for payload in completed]
    assert "of another session" not in found.context_text


async def test_horizontal_scan_finds_an_old_turn_by_its_words(by_hand: OpenStack) -> None:
    """Beyond the newest turns, one that shares words with the message is found; others are not."""
    async with by_hand(settings={"recent_turns": 1, "attention_matches": 1}) as stack:
        session_id = await talk(stack, "the penguin lives in Bergen", "nothing special", "nothing either", "the newest")
        found = await stack.supervisor.attention.horizontal_scan(session_id, "where is that penguin?")
    assert [fragment.content.partition("\n")[0] for fragment in found.fragments] == [
        "user: the penguin lives in Bergen",
        "user: the newest",
    ]


async def test_horizontal_scan_empty_ho2m(stack: Stack) -> None:
    """Nothing was said yet: an empty context, not an error."""
    session_id = await stack.supervisor.start_session()
    found = await stack.supervisor.attention.horizontal_scan(session_id, "hello")
    assert isinstance(found, AttentionContext)
    assert (found.context_text, found.fragments, found.budget_used.tokens) == ("", (), 0)
    assert found.context_hash == digest(b"")


async def test_priority_probe_returns_empty(stack: Stack) -> None:
    """Nothing is configured and there is no memory: nothing has priority."""
    found = await stack.supervisor.attention.priority_probe()
    assert (found.context_text, found.fragments) == ("", ())


async def test_attention_budget_truncation(by_hand: OpenStack) -> None:
    """Fragments are cut at `attention_budget_tokens`, the newest are kept, and the cut is on record."""
    messages = [f"question {n} " + "x" * 300 for n in range(4)]
    async with by_hand(settings={"attention_budget_tokens": 500}) as stack:
        session_id = await talk(stack, *messages)
        found = await stack.supervisor.attention.horizontal_scan(session_id, "question")
        await stack.turn("one more", session_id=session_id)
        planned = await stack.payloads(events.WO_PLANNED)
    kept = [fragment.content.split()[2] for fragment in found.fragments]
    assert kept == ["2", "3"]
    assert sum(fragment.token_estimate for fragment in found.fragments) == found.budget_used.tokens <= 500
    assert found.budget_used.cut_by == "tokens"
    assert planned[-1]["attention"]["cut_by"] == "tokens"
    assert len(planned[-1]["attention"]["fragment_refs"]) == 2


async def test_attention_context_hash_computed(stack: Stack) -> None:
    """The context's hash is `sha256:` of its text, in the result and in the work order."""
    session_id = await talk(stack, "grüß dich")
    found = await stack.supervisor.attention.horizontal_scan(session_id, "hello")
    assert found.history is not None
    assert found.history[0] == "grüß dich"
    assert found.context_hash == digest(found.context_text.encode())
    assert found.context_hash.startswith("sha256:")
    await stack.turn("again", session_id=session_id)
    shown = stack.executor.given[-1].input_context["assembled_context"]
    assert shown["context_hash"] == digest(shown["context_text"].encode()) == found.context_hash


def test_template_resolution_admin() -> None:
    """ADMIN is served by the template that names it."""
    template = resolve_template(load_templates(), "ADMIN")
    assert template.template_id == "ATT-ADMIN-001"
    budget = template.budget
    assert (budget.max_context_tokens, budget.max_queries, budget.timeout_ms) == (10_000, 20, 5_000)


def test_template_resolution_no_match() -> None:
    """A class that no template names is served by the default one."""
    assert resolve_template(load_templates(), "RESIDENT:bo").template_id == "ATT-DEFAULT-001"


async def test_assemble_wo_context_merges(by_hand: OpenStack) -> None:
    """What has priority and what was said stand in one context, each once, in the work order of the reply."""
    async with by_hand(settings={"standing_rules": RULES}) as stack:
        session_id = await talk(stack, "first question")
        attention = stack.supervisor.attention
        horizontal, priority = await attention.horizontal_scan(session_id, "x"), await attention.priority_probe()
        merged = attention.assemble_wo_context(horizontal, priority, "second question", QUESTION)
        assert merged.fragments == (*priority.fragments, *horizontal.fragments)
        assert attention.assemble_wo_context(merged, priority, "second question", QUESTION).fragments == merged.fragments
        await stack.turn("second question", session_id=session_id)
    shown = stack.executor.given[-1].input_context["assembled_context"]
    assert [(fragment["source"], fragment["source_id"]) for fragment in shown["fragments"]] == [
        ("standing_rule", "INV-1"),
        ("standing_rule", "INV-2"),
        ("HO2M", f"T-{session_id[4:]}-000001"),
    ]
    assert shown["history"][0] == "first question"
    assert all(rule in stack.executor.given[-1].input_context["instructions"] for rule in RULES)


class Readers:
    """A `ContextProvider` of which each reader says, fails or hangs as it is told."""

    def __init__(self, *, newest: str | Exception | None = "n", matching: str | Exception | None = "m") -> None:
        self._newest, self._matching = newest, matching

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("newest", self._newest)

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("matching", self._matching)

    async def read_registry(self) -> Sequence[ContextFragment]:
        return ()

    @staticmethod
    async def _read(source_id: str, said: str | Exception | None) -> Sequence[ContextFragment]:
        if said is None:
            await anyio.sleep_forever()
        if isinstance(said, Exception):
            raise said
        return [ContextFragment("test", source_id, said or "", 1)]


def retriever(readers: Readers, **settings: int) -> AttentionRetriever:
    """Attention over these readers."""
    return AttentionRetriever(readers, HO2Config.model_validate(settings), resolve_template(load_templates(), "ADMIN"))


@pytest.mark.parametrize(
    ("readers", "settings", "kept", "cut_by"),
    [
        (Readers(matching=OSError("disk")), {}, ["newest"], "error"),
        (Readers(newest=ValueError("odd")), {}, [], "error"),
        (Readers(matching=None), {"attention_timeout_ms": 5}, ["newest"], "time"),
        (Readers(), {"attention_budget_queries": 1}, ["newest"], "queries"),
        (Readers(), {}, ["matching", "newest"], None),
    ],
)
async def test_gathering_fails_open(readers: Readers, settings: dict[str, int], kept: list[str], cut_by: str | None) -> None:
    """A reader that fails or hangs, or a budget that runs out, leaves what was found until then, and says what cut it."""
    with anyio.fail_after(10):
        found = await retriever(readers, **settings).horizontal_scan("SES-00000001", "query")
    assert [fragment.source_id for fragment in found.fragments] == kept
    assert found.budget_used.cut_by == cut_by


async def test_a_turn_goes_on_without_context(by_hand: OpenStack) -> None:
    """A context reader that fails costs the turn its context and nothing else."""
    async with by_hand(attention=retriever(Readers(newest=OSError("disk"), matching=OSError("disk")))) as stack:
        result = await stack.turn("hello")
        planned = await stack.payloads(events.WO_PLANNED)
    assert (result.response, result.degraded) == ("re: hello", False)
    assert stack.executor.given[-1].input_context["assembled_context"]["context_text"] == ""
    assert planned[-1]["attention"]["cut_by"] == "error"


def test_own_template_is_preferred_to_the_shipped_one(tmp_path: Path) -> None:
    """A directory of own templates is laid over the shipped ones; a broken file is named with the field that is wrong."""
    own = tmp_path / "ATT-BO-001.json"
    own.write_text(
        '{"template_id": "ATT-BO-001", "applies_to": {"agent_class": ["RESIDENT:bo"]},'
        ' "budget": {"max_context_tokens": 7, "max_queries": 2, "timeout_ms": 1}}'
    )
    templates = load_templates(str(tmp_path))
    assert resolve_template(templates, "RESIDENT:bo").template_id == "ATT-BO-001"
    assert resolve_template(templates, "ADMIN").template_id == "ATT-ADMIN-001"
    own.write_text(own.read_text().replace('"max_queries": 2', '"max_queries": 0'))
    with pytest.raises(ConfigError) as caught:
        load_templates(str(tmp_path))
    assert (caught.value.source, caught.value.key) == (str(own), "budget.max_queries")
