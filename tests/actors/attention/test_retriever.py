"""Gathering within budgets of tokens, reads and time, whatever the reader does; explained in docs/attention.md."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import HO2Config
from kitchener.actors import AttentionContext, AttentionRetriever, ContextFragment
from kitchener.actors.attention.attention_context import (
    EMPTY_HASH,
    STANDING_RULE,
    AssembledContext,
    BudgetUsed,
    standing_rule_fragments,
)
from kitchener.actors.attention.retriever import match_words
from kitchener.actors.attention.templates import AttentionTemplate, load_templates, resolve_template, write_manifest
from kitchener.canonical import digest
from kitchener.errors import ConfigError, LedgerClosed
from kitchener.records import events
from kitchener.records.ref import Ref
from tests.acceptance.stack import open_by_hand
from tests.actors.time_control import in_virtual_time

SESSION = "SES-00000001"


def template(**budget: int) -> AttentionTemplate:
    bounds = {"max_context_tokens": 10_000, "max_queries": 20, "timeout_ms": 5_000, **budget}
    return AttentionTemplate.model_validate(
        {"template_id": "ATT-TEST-001", "applies_to": {"agent_class": ["*"]}, "budget": bounds}
    )


def past(n: int, tokens: int = 10, text: str | None = None) -> ContextFragment:
    return ContextFragment("HO2M", f"T-{n:03d}", text or f"turn {n}", tokens, ref=Ref("HO2M:ADMIN", f"E-{n}", "sha256:0"))


class Reader:
    """A context provider whose answers, waits and failures the test chooses."""

    def __init__(
        self,
        *,
        newest: Sequence[ContextFragment] = (),
        matching: Sequence[ContextFragment] = (),
        registry: Sequence[ContextFragment] = (),
        takes_s: float = 0.0,
        fails_with: dict[str, Exception] | None = None,
    ) -> None:
        self._answers = {"newest": newest, "matching": matching, "registry": registry}
        self._takes_s = takes_s
        self._fails_with = fails_with or {}
        self.reads: list[tuple[Any, ...]] = []

    async def _read(self, what: str, *arguments: Any) -> Sequence[ContextFragment]:
        self.reads.append((what, *arguments))
        if self._takes_s:
            await anyio.sleep(self._takes_s)
        if what in self._fails_with:
            raise self._fails_with[what]
        return self._answers[what]

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("newest", session_id, limit)

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        return await self._read("matching", session_id, query, limit)

    async def read_registry(self) -> Sequence[ContextFragment]:
        return await self._read("registry")


def retriever(reader: Reader, bounds: dict[str, int] | None = None, **config: Any) -> AttentionRetriever:
    return AttentionRetriever(reader, HO2Config(**config), template(**(bounds or {})))


def ids(context: AttentionContext) -> list[str]:
    return [fragment.source_id for fragment in context.fragments]


async def test_the_newest_and_the_matching_turns_are_shown_oldest_first_and_once() -> None:
    reader = Reader(newest=[past(7), past(8), past(9)], matching=[past(8), past(2), past(9), past(5)])
    found = await retriever(reader, recent_turns=3, attention_matches=2).horizontal_scan(SESSION, "soup?")
    assert ids(found) == ["T-002", "T-005", "T-007", "T-008", "T-009"]
    assert found.context_text == "turn 2\n\nturn 5\n\nturn 7\n\nturn 8\n\nturn 9"
    assert found.context_hash == digest(found.context_text.encode())
    assert found.template_id == "ATT-TEST-001"
    assert (found.budget_used.tokens, found.budget_used.queries, found.budget_used.cut_by) == (50, 2, None)
    assert reader.reads == [("newest", SESSION, 3), ("matching", SESSION, "soup?", 5)]


async def test_no_more_matches_than_asked_for_are_shown_best_first() -> None:
    reader = Reader(newest=[past(9)], matching=[past(5), past(3), past(1)])
    found = await retriever(reader, recent_turns=1, attention_matches=2).horizontal_scan(SESSION, "x")
    assert ids(found) == ["T-003", "T-005", "T-009"]


@pytest.mark.parametrize(
    ("recent", "matches", "reads", "shown"),
    [
        (2, 0, ["newest"], ["T-008", "T-009"]),
        (0, 2, ["matching"], ["T-001", "T-008"]),
        (0, 0, [], []),
    ],
)
async def test_what_is_switched_off_is_not_read(recent: int, matches: int, reads: list[str], shown: list[str]) -> None:
    reader = Reader(newest=[past(8), past(9)], matching=[past(8), past(1)])
    found = await retriever(reader, recent_turns=recent, attention_matches=matches).horizontal_scan(SESSION, "x")
    assert [read[0] for read in reader.reads] == reads
    assert ids(found) == shown


async def test_nothing_found_is_an_empty_context() -> None:
    found = await retriever(Reader()).horizontal_scan(SESSION, "x")
    assert (found.context_text, found.context_hash, found.fragments) == ("", EMPTY_HASH, ())
    assert found.context_hash == digest(b"")
    assert found.template_id == "ATT-TEST-001"
    assert found.as_assembled() == AssembledContext(context_text="", context_hash=EMPTY_HASH, fragments=[])


async def test_past_the_tokens_the_newest_are_kept_and_the_cut_is_said() -> None:
    reader = Reader(newest=[past(n) for n in range(1, 7)], matching=[])
    found = await retriever(reader, {"max_context_tokens": 35}).horizontal_scan(SESSION, "x")
    assert ids(found) == ["T-004", "T-005", "T-006"]
    assert (found.budget_used.tokens, found.budget_used.cut_by) == (30, "tokens")


async def test_a_fragment_that_is_too_large_leaves_room_for_smaller_ones() -> None:
    reader = Reader(newest=[past(1, 10), past(2, 500), past(3, 10)])
    found = await retriever(reader, {"max_context_tokens": 20}).horizontal_scan(SESSION, "x")
    assert ids(found) == ["T-001", "T-003"]
    assert found.budget_used.cut_by == "tokens"


async def test_exactly_as_many_tokens_as_allowed_are_no_cut() -> None:
    found = await retriever(Reader(newest=[past(1), past(2)]), {"max_context_tokens": 20}).horizontal_scan(SESSION, "x")
    assert (ids(found), found.budget_used.cut_by) == (["T-001", "T-002"], None)


async def test_if_nothing_fits_the_cut_is_still_said() -> None:
    found = await retriever(Reader(newest=[past(1)]), {"max_context_tokens": 5}).horizontal_scan(SESSION, "x")
    assert (found.fragments, found.budget_used.tokens, found.budget_used.cut_by) == ((), 0, "tokens")


@pytest.mark.parametrize(
    ("of_template", "of_agent", "effective"),
    [
        ({"max_context_tokens": 15}, {}, 1),
        ({}, {"attention_budget_tokens": 25}, 2),
        ({"max_context_tokens": 15}, {"attention_budget_tokens": 25}, 1),
    ],
)
async def test_the_tighter_of_the_template_s_and_the_agent_s_bounds_holds(
    of_template: dict[str, int], of_agent: dict[str, int], effective: int
) -> None:
    reader = Reader(newest=[past(1), past(2), past(3)])
    found = await retriever(reader, of_template, **of_agent).horizontal_scan(SESSION, "x")
    assert len(found.fragments) == effective


async def test_past_the_reads_what_was_found_is_used() -> None:
    reader = Reader(newest=[past(8), past(9)], matching=[past(1)])
    found = await retriever(reader, {"max_queries": 1}).horizontal_scan(SESSION, "x")
    assert [read[0] for read in reader.reads] == ["newest"]
    assert ids(found) == ["T-008", "T-009"]
    assert (found.budget_used.queries, found.budget_used.cut_by) == (1, "queries")


@in_virtual_time
async def test_past_the_time_what_was_found_is_used() -> None:
    reader = Reader(newest=[past(8), past(9)], matching=[past(1)], takes_s=3)
    began = anyio.current_time()
    found = await retriever(reader, {"timeout_ms": 5_000}).horizontal_scan(SESSION, "x")
    assert anyio.current_time() == began + 5
    assert ids(found) == ["T-008", "T-009"]
    assert found.budget_used == BudgetUsed(tokens=20, queries=1, elapsed_ms=5_000, cut_by="time")


@in_virtual_time
async def test_the_agent_s_own_time_may_be_shorter() -> None:
    reader = Reader(newest=[past(1)], takes_s=3)
    found = await retriever(reader, {"timeout_ms": 5_000}, attention_timeout_ms=2_000).horizontal_scan(SESSION, "x")
    assert (found.fragments, found.budget_used.elapsed_ms, found.budget_used.cut_by) == ((), 2_000, "time")


@in_virtual_time
async def test_reading_in_time_is_no_cut_and_its_time_is_told() -> None:
    reader = Reader(newest=[past(1)], takes_s=2)
    found = await retriever(reader).horizontal_scan(SESSION, "x")
    assert (found.budget_used.elapsed_ms, found.budget_used.cut_by) == (4_000, None)


async def test_a_cancelled_gathering_is_cancelled_and_not_a_cut() -> None:
    class Held(Reader):
        async def read_registry(self) -> Sequence[ContextFragment]:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError("unreachable")

    with anyio.fail_after(5), anyio.CancelScope() as scope:
        await retriever(Held()).priority_probe()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "error",
    [
        OSError("disk"),
        LedgerClosed("closed"),
        ValueError("odd"),
        TimeoutError(),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
)
async def test_a_reader_that_fails_leaves_a_smaller_context_and_says_so(error: Exception) -> None:
    reader = Reader(newest=[past(9)], matching=[past(1)], fails_with={"matching": error})
    found = await retriever(reader).horizontal_scan(SESSION, "x")
    assert (ids(found), found.budget_used.queries, found.budget_used.cut_by) == (["T-009"], 1, "error")
    reader = Reader(matching=[past(1)], fails_with={"newest": error})
    found = await retriever(reader).horizontal_scan(SESSION, "x")
    assert (ids(found), found.budget_used.queries, found.budget_used.cut_by) == ([], 0, "error")


RULES = standing_rule_fragments(("Never delete files.", "Answer in English."), "utf8/3")


def test_standing_rules_are_numbered_sized_and_named() -> None:
    assert [(rule.source, rule.source_id, rule.content) for rule in RULES] == [
        (STANDING_RULE, "INV-1", "Never delete files."),
        (STANDING_RULE, "INV-2", "Answer in English."),
    ]
    assert RULES[0].token_estimate == 7
    assert RULES[0].ref == Ref("RULESET", "INV-1", digest(b"Never delete files."))


async def test_the_probe_finds_the_standing_rules_and_shows_no_text_of_them() -> None:
    probe = await retriever(Reader(registry=RULES)).priority_probe()
    assert ids(probe) == ["INV-1", "INV-2"]
    assert probe.context_text == ""  # they are shown as instructions
    assert probe.budget_used.tokens == sum(rule.token_estimate for rule in RULES)


def untimed(context: AttentionContext) -> AttentionContext:
    """A context without the time that it took to gather."""
    return context._replace(budget_used=context.budget_used._replace(elapsed_ms=0))


async def test_fixed_rules_are_shown_as_those_of_the_registry_and_never_read() -> None:
    asked, fixed = Reader(registry=RULES), Reader(registry=RULES)
    fixed.fixed_rules = RULES  # type: ignore[attr-defined]  # an attribute that a provider may have
    attention = retriever(fixed)
    for _ in range(2):
        assert untimed(await attention.priority_probe()) == untimed(await retriever(asked).priority_probe())
    assert (fixed.reads, len(asked.reads)) == ([], 2)


async def test_a_merged_context_has_rules_first_each_source_once_and_both_budgets() -> None:
    reader = Reader(newest=[past(8), past(9)], matching=[past(1)], registry=RULES)
    attention = retriever(reader)
    horizontal = await attention.horizontal_scan(SESSION, "x")
    priority = await attention.priority_probe()
    merged = attention.assemble_wo_context(horizontal, priority, "x", {"speech_act": "question"})
    assert ids(merged) == ["INV-1", "INV-2", "T-001", "T-008", "T-009"]
    assert merged.context_text == "turn 1\n\nturn 8\n\nturn 9"
    assert merged.context_hash == digest(merged.context_text.encode())
    assert merged.budget_used.queries == 3
    assert merged.budget_used.tokens == 30 + sum(rule.token_estimate for rule in RULES)
    twice = attention.assemble_wo_context(merged, priority, "x", {})
    assert ids(twice) == ids(merged)


async def test_without_rules_the_gathered_context_stands_as_it_is() -> None:
    attention = retriever(Reader(newest=[past(9)]))
    horizontal = await attention.horizontal_scan(SESSION, "x")
    assert attention.assemble_wo_context(horizontal, await attention.priority_probe(), "x", {}) == horizontal


async def test_rules_come_before_turns_where_tokens_are_short() -> None:
    reader = Reader(newest=[past(8), past(9)], registry=RULES)
    attention = retriever(reader, {"max_context_tokens": 25})
    merged = attention.assemble_wo_context(
        await attention.horizontal_scan(SESSION, "x"), await attention.priority_probe(), "x", {}
    )
    assert ids(merged) == ["INV-1", "INV-2", "T-009"]
    assert merged.budget_used.cut_by == "tokens"
    assert merged.budget_used.tokens <= 25


async def test_a_registry_that_cannot_be_read_is_said_in_the_merged_context() -> None:
    # Regression: the context looked as if nothing had been left out.
    attention = retriever(Reader(newest=[past(9)], fails_with={"registry": OSError("disk")}))
    merged = attention.assemble_wo_context(
        await attention.horizontal_scan(SESSION, "x"), await attention.priority_probe(), "x", {}
    )
    assert (ids(merged), merged.context_text, merged.budget_used.cut_by) == (["T-009"], "turn 9", "error")


async def test_the_same_material_gives_the_same_bytes() -> None:
    newest, matching = [past(8), past(9)], [past(1), past(5)]
    contexts = []
    for _ in range(2):
        attention = retriever(Reader(newest=newest, matching=matching, registry=RULES))
        contexts.append(
            attention.assemble_wo_context(
                await attention.horizontal_scan(SESSION, "x"), await attention.priority_probe(), "x", {}
            )
        )
    assert contexts[0].as_assembled() == contexts[1].as_assembled()
    swapped = retriever(Reader(newest=newest, matching=list(reversed(matching)), registry=RULES))
    assert (await swapped.horizontal_scan(SESSION, "x")).context_text == "turn 1\n\nturn 5\n\nturn 8\n\nturn 9"


def test_a_context_in_a_work_order_names_its_fragments_without_repeating_them() -> None:
    context = AttentionContext("turn 1", digest(b"turn 1"), (past(1),), "ATT-TEST-001")
    assert context.as_assembled() == {
        "context_text": "turn 1",
        "context_hash": digest(b"turn 1"),
        "fragments": [{"source": "HO2M", "source_id": "T-001", "token_estimate": 10}],
    }


async def test_what_an_own_provider_shows_is_on_record_with_the_plan(tmp_path: Path) -> None:
    reader = Reader(newest=[past(8), ContextFragment("notes", "n-1", "without a ref", 5)], registry=RULES)
    attention = AttentionRetriever(reader, HO2Config(), template())
    async with open_by_hand(tmp_path, attention=attention) as stack:
        await stack.turn("hello")
        plans = await stack.payloads(events.WO_PLANNED)
        [synthesize] = [wo for wo in stack.executor.given if wo.wo_type == "synthesize"]
    [recorded] = [plan["attention"] for plan in plans if "attention" in plan]
    shown = synthesize.input_context["assembled_context"]
    assert shown["context_text"] == "turn 8\n\nwithout a ref"
    assert [fragment["source_id"] for fragment in shown["fragments"]] == ["INV-1", "INV-2", "T-008", "n-1"]
    refs = [fragment.ref.as_mapping() for fragment in (*RULES, past(8)) if fragment.ref is not None]
    assert recorded == {
        "template_id": "ATT-TEST-001",
        "fragment_refs": refs,
        "cut_by": None,
        "context_hash": shown["context_hash"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", set()),
        ("Where is the penguin?", {"penguin"}),
        ("PENGUIN penguin's", {"penguin"}),
        ("an ox is at it", set()),
        ("snake_case and 2024", {"snake_case", "2024"}),
        ("Äpfel über Brücken", {"äpfel", "über", "brücken"}),
    ],
)
def test_matching_looks_at_words_that_say_something(text: str, words: set[str]) -> None:
    assert match_words(text) == words


# --- templates ----------------------------------------------------------------------------------------------------------


def write_template(directory: Path, name: str, *agent_classes: str, **changes: Any) -> None:
    body = {
        "template_id": name,
        "applies_to": {"agent_class": list(agent_classes)},
        "budget": {"max_context_tokens": 100, "max_queries": 2, "timeout_ms": 50},
        **changes,
    }
    (directory / f"{name}.json").write_text(json.dumps(body), encoding="utf-8")


def test_the_most_specific_template_serves_a_class(tmp_path: Path) -> None:
    write_template(tmp_path, "ATT-ANY-RESIDENT", "RESIDENT:*")
    write_template(tmp_path, "ATT-BO", "RESIDENT:bo", "RESIDENT:al")
    templates = load_templates(str(tmp_path))
    chosen = {name: resolve_template(templates, name).template_id for name in ("ADMIN", "RESIDENT:bo", "RESIDENT:cy")}
    assert chosen == {"ADMIN": "ATT-ADMIN-001", "RESIDENT:bo": "ATT-BO", "RESIDENT:cy": "ATT-ANY-RESIDENT"}
    assert resolve_template(load_templates(), "RESIDENT:bo").template_id == "ATT-DEFAULT-001"


def test_templates_equally_specific_are_chosen_by_id(tmp_path: Path) -> None:
    for name in ("ATT-Z", "ATT-A", "ATT-M"):
        write_template(tmp_path, name, "RESIDENT:bo")
    assert resolve_template(load_templates(str(tmp_path)), "RESIDENT:bo").template_id == "ATT-A"


def test_an_own_template_replaces_the_shipped_one_of_its_id(tmp_path: Path) -> None:
    write_template(tmp_path, "ATT-ADMIN-001", "ADMIN")
    assert resolve_template(load_templates(str(tmp_path)), "ADMIN").budget.max_queries == 2
    assert resolve_template(load_templates(), "ADMIN").budget.max_queries == 20


def test_no_template_for_a_class_is_said() -> None:
    with pytest.raises(ConfigError, match="no template serves this agent class"):
        resolve_template((), "ADMIN")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"budget": {"max_context_tokens": 0, "max_queries": 2, "timeout_ms": 50}}, "budget.max_context_tokens"),
        ({"budget": {"max_context_tokens": 1, "max_queries": 2}}, "budget.timeout_ms"),
        ({"applies_to": {"agent_class": []}}, "applies_to.agent_class"),
        ({"template_id": "PRC-1"}, "template_id"),
        ({"pipeline": {}}, "pipeline"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_template_is_named_with_the_place(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    write_template(tmp_path, "ATT-WRONG", "ADMIN", **changes)
    with pytest.raises(ConfigError) as caught:
        load_templates(str(tmp_path))
    assert (caught.value.source, caught.value.key) == (str(tmp_path / "ATT-WRONG.json"), key)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pipeline": {"structuring": "chronological"}}, "pipeline: is no longer a field"),
        ({"fallback": {}}, "fallback: is no longer a field"),
        ({"applies_to": {"agent_class": ["ADMIN"], "tier": ["ho2"]}}, "applies_to.tier: is no longer a field"),
        ({"colour": "red"}, "colour: is not a field of templates"),
    ],
)
def test_a_field_that_templates_do_not_have_is_to_be_removed(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    """Earlier templates had three fields with only one allowed value."""
    write_template(tmp_path, "ATT-OLD", "ADMIN", **changes)
    with pytest.raises(ConfigError, match="remove it") as caught:
        load_templates(str(tmp_path))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("ATT-MINE.json", " ", r"ATT-MINE\.json: has changed"),
        ("ATT-MINE.json", None, r"ATT-MINE\.json: is missing"),
        ("ATT-OTHER.json", "{}", r"ATT-OTHER\.json: is not listed"),
        ("manifest.json", "[]", "an object with the hash"),
        ("manifest.json", "{", "is not JSON"),
    ],
)
def test_a_manifest_of_templates_is_checked(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    """A directory without one is taken as it is; the shipped directory has one."""
    write_template(tmp_path, "ATT-MINE", "RESIDENT:bo")
    load_templates(str(tmp_path))
    write_manifest(str(tmp_path))
    assert load_templates(str(tmp_path))[-1].template_id == "ATT-MINE"
    file = tmp_path / name
    if text is None:
        file.unlink()
    else:
        file.write_text((file.read_text(encoding="utf-8") if text == " " else "") + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        load_templates(str(tmp_path))


def test_the_shipped_templates_stand_in_their_manifest() -> None:
    shipped = files("kitchener.actors") / "assets" / "attention"
    listed = json.loads((shipped / "manifest.json").read_text("utf-8"))
    assert set(listed) == {each.name for each in shipped.iterdir()} - {"manifest.json"}
    assert all(listed[name] == digest((shipped / name).read_bytes()) for name in listed)


async def test_the_probe_brings_learned_lines_beside_the_rules() -> None:
    """Their budget is their own, so the limits of attention do not cut them. A failing memory is the caller's to record."""
    anchors = [ContextFragment("HO3M", "ART-1", "Answers in German.", 6), ContextFragment("HO3M", "ART-2", "Likes tea.", 4)]

    async def read() -> list[ContextFragment]:
        return anchors

    async def fail() -> list[ContextFragment]:
        raise OSError("the memory is gone")

    attention = retriever(Reader(newest=[past(1)], registry=RULES), {"max_context_tokens": 5})
    probe = await attention.priority_probe(read)
    assert probe.biases == tuple(anchors)
    merged = attention.assemble_wo_context(await attention.horizontal_scan(SESSION, "x"), probe, "x", {})
    assert merged.as_assembled()["ho3_biases"] == ["Answers in German.", "Likes tea."]
    bare = retriever(Reader(newest=[past(1)]))
    merged = bare.assemble_wo_context(await bare.horizontal_scan(SESSION, "x"), await bare.priority_probe(read), "x", {})
    assert merged.biases == tuple(anchors)
    with pytest.raises(OSError, match="gone"):
        await attention.priority_probe(fail)


def test_a_template_directory_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a directory"):
        load_templates(str(tmp_path / "nowhere"))


def test_a_template_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "ATT-X.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ATT-X\.json"):
        load_templates(str(tmp_path))
