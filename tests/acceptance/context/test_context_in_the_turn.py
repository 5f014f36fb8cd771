"""The Context Authority in running conversations: the context shown, the record, and shadows that change nothing."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.config import LedgerConfig
from kitchener.context import ProjectionLists, base_ref, read_lists
from kitchener.errors import EntryRefused
from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry
from kitchener.records import events
from kitchener.records.ref import Ref
from kitchener.runtime import open_runtime
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.context.context_kit import (
    BRIDGE,
    ENFORCE,
    OTHER,
    SHADOW,
    SID,
    Talk,
    actions,
    talk,
    talking,
    without_hashes,
)
from tests.acceptance.stack import QUICK, places, read_all
from tests.shared.payloads import payload_of

SCRIPT = (
    "hello",
    "more of it",
    "[switch] a hotel in Oslo",
    "[fail] which one",
    "[empty] and now",
    "which one then",
    "[back] the first thing",
    "[unclear] hm",
    "[close] thanks",
    "[close] bye",
    "[ghost] something else",
    "[done] all of it",
)
"""A conversation in which most things happen once."""


# --- off ---------------------------------------------------------------------------------------------------------------------


async def test_off_writes_nothing_of_it(tmp_path: Path) -> None:
    async with talking(tmp_path) as ada:
        await ada.say(*SCRIPT)
        assert await ada.intents() == []
        assert await read_all(ada.ledgers.context) == []
        completed = await read_all(ada.ledgers.ho2m, entry_type=events.TURN_COMPLETED)
        assert [(e.payload["intent_id"], e.payload["projection_ref"]) for e in completed] == [(None, None)] * len(SCRIPT)


@pytest.mark.soak
async def test_off_runs_none_of_it(tmp_path: Path) -> None:
    """`docs/context.md`: where the mode is off, no function of the Authority is called."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/kitchener/context/" in frame.f_code.co_filename:
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    async with talking(tmp_path) as ada:
        sys.setprofile(note)
        try:
            await ada.say(*SCRIPT)
        finally:
            sys.setprofile(None)
        assert called == []


# --- shadow ------------------------------------------------------------------------------------------------------------------


def one_keyring(where: Path) -> LedgerConfig:
    """For runs under several roots: digests of content are the same under the same key of the subject."""
    return QUICK.model_copy(update={"keyring": str(where / "keys")})


async def recorded(root: Path, **config: Any) -> tuple[list[Any], list[Any]]:
    """What the model was asked, and what stands in HO2m and HO1m, without hashes and places."""
    async with talking(root, **config) as ada:
        await ada.say(*SCRIPT)
        asked = [(request.wo_type, request.variables, request.messages) for request in ada.provider.requests]
        entries = [*await read_all(ada.ledgers.ho2m), *await read_all(ada.ledgers.ho1m)]
        return asked, [(entry.entry_type, entry.entity_id, without_hashes(entry.payload)) for entry in entries]


@pytest.mark.parametrize("intent_mode", ["bridge", "classified"])
async def test_shadow_mode_changes_nothing_shown(tmp_path: Path, intent_mode: str) -> None:
    off, shadow = (
        await recorded(tmp_path / "off", ledger=one_keyring(tmp_path)),
        await recorded(tmp_path / "shadow", ledger=one_keyring(tmp_path), context_mode="shadow", intent_mode=intent_mode),
    )
    assert shadow[0] == off[0]
    assert shadow[1] == off[1]


async def test_shadow_decides_on_the_context_ledger_alone(tmp_path: Path) -> None:
    async with talking(tmp_path, **SHADOW) as ada:
        result = await ada.say(*SCRIPT)
        assert (result.intent_id, result.projection_ref) == (None, None)
        assert await ada.intents() == []
        decided = await ada.decisions(events.INTENT_SHADOW_DECISION)
        before = [e.payload["action"] for e in decided if e.payload["step"] == "before"]
        assert before == [
            "DECLARE",
            "CONTINUE",
            "SUPERSEDE",
            "CONTINUE",
            "CONTINUE",
            "CONTINUE",
            "SUPERSEDE",
            "CONTINUE",
            "CLOSE",
            "NOOP",
            "DECLARE",
            "CONTINUE",
        ]
        projected = await ada.decisions(events.PROJECTION_COMPUTED)
        assert [e.payload["mode"] for e in projected] == ["shadow"] * len(SCRIPT)
        assert await ada.flags() == ["UNCLEAR_INTENT"]


async def test_shadow_survives_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with talking(tmp_path, clock, **SHADOW) as ada:
        await ada.say("hello", "[deaf] more", "[switch] hotel", "[fail] nothing", "[close] thanks")
        before, left = await ada.kept(), (await ada.supervisor.session(SID)).thread
    async with talking(tmp_path, clock, **SHADOW) as ada:
        thread = (await ada.supervisor.session(SID)).thread
        assert left is not None
        assert thread is not None
        assert await ada.kept() == before
        assert (thread.prior_intent_id, thread.bases.keys()) == (left.prior_intent_id, left.bases.keys())


async def test_shadow_keeps_what_was_enforced_before(tmp_path: Path) -> None:
    """Turns that a real intent claims stay with it, whatever the shadow decides later."""
    clock = FakeClock()
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        first = (await ada.say("hello", "more")).intent_id
    for _ in range(2):
        async with talking(tmp_path, clock, **SHADOW) as ada:
            await ada.say("even more")
            state = (await ada.supervisor.session(SID)).thread
            assert state is not None
            assert {item.intent_id for item in state.state.turns.values()} == {first}


class Refusing:
    """A context ledger that refuses the writes of one type, and does all else as it should."""

    def __init__(self, ledger: LedgerClient, error: Exception, *entry_types: str) -> None:
        self._ledger, self._error, self._types = ledger, error, entry_types

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def write(self, entry: LedgerEntry, **options: Any) -> Ref:
        if entry.entry_type in self._types:
            raise self._error
        return await self._ledger.write(entry, **options)


@pytest.mark.parametrize("entry_type", [events.INTENT_SHADOW_DECISION, events.PROJECTION_COMPUTED, events.CONFLICT_FLAG])
@pytest.mark.parametrize("error", [RuntimeError("broken"), EntryRefused("payload", "too odd")])
async def test_a_shadow_that_fails_is_not_felt(tmp_path: Path, entry_type: str, error: Exception) -> None:
    async with talking(tmp_path, **SHADOW) as ada:
        await ada.say("hello")
        ledgers, session = ada.ledgers, await ada.supervisor.session(SID)
        kept = ledgers.context
        ledgers.context = Refusing(kept, error, entry_type)  # type: ignore[assignment]
        refused = await ada.say("[unclear] more")
        ledgers.context = kept
        assert refused.error is None
        assert refused.response == "echo: more"
        before = session.thread.state.snapshot() if session.thread is not None else None
        after = await ada.say("[switch] and on")
        assert after.error is None
        assert before is not None
        assert len(await ada.decisions(events.PROJECTION_COMPUTED)) >= 2


async def test_a_turn_whose_shadow_fails_is_recalled_by_the_subjects_other_sessions(tmp_path: Path) -> None:
    """Regression: it was left out until the subject's turns were read from the ledger again."""
    recalled = []
    for name, types in (("whole", ()), ("failing", (events.PROJECTION_COMPUTED,))):
        async with talking(tmp_path / name, **SHADOW, recall_scope="subject") as ada:
            await ada.start(OTHER)
            await ada.say("hello", session_id=OTHER)
            ledgers = ada.ledgers
            kept = ledgers.context
            ledgers.context = Refusing(kept, RuntimeError("broken"), *types)  # type: ignore[assignment]
            await ada.say("The boat lies in Oslo")
            ledgers.context = kept
            await ada.say("Where does the boat lie?", session_id=OTHER)
            visible, said = (await ada.lists(OTHER)).visible, await read_all(ledgers.ho2m, session_id=SID)
            recalled.append([each.entry_type for each in said if each.ref in visible])
    assert recalled[0] == recalled[1] != []


# --- enforce -----------------------------------------------------------------------------------------------------------------


async def test_context_mode_from_config_reaches_the_model(tmp_path: Path) -> None:
    contexts = {}
    for mode in ("off", "enforce"):
        root = tmp_path / mode
        root.mkdir()
        (root / "kitchener.toml").write_text(
            f'plane_root = "plane"\n[router]\ndefault_provider = "scripted"\n[agents.ADMIN]\ncontext_mode = "{mode}"\n'
            'intent_mode = "classified"\nrecent_turns = 1\n'
        )
        provider, clock = ScriptedProvider(talk), FakeClock()
        async with open_runtime(root / "kitchener.toml", providers={"scripted": provider}, clock=clock) as runtime:
            ada = Talk(runtime, provider, clock)
            await ada.start()
            await ada.say("hello", "[switch] a hotel")
            contexts[mode] = ada.shown()
    assert contexts["off"]["history"] == ["hello", "echo: hello"]
    assert contexts["enforce"]["context_text"].startswith("Goal: a hotel\n")
    assert [each["source"] for each in contexts["enforce"]["fragments"]] == ["intent", "evidence", "evidence"]


async def rebuilt(entries: list[StoredEntry]) -> list[ProjectionLists]:
    """The lists of each recorded projection, read the way that anybody would: along what each refers to."""
    found: dict[str, ProjectionLists] = {}
    for entry in entries:
        base = base_ref(entry.payload)
        found[entry.entry_id] = read_lists(entry.payload, found[base.entry_id] if base is not None else None)
    return list(found.values())


async def test_what_is_shown_is_the_recorded_projection(tmp_path: Path) -> None:
    async with talking(tmp_path, standing_rules=("Never delete files.",), **ENFORCE) as ada:
        for message in SCRIPT:
            result = await ada.say(message)
            shown = ada.shown()
            projected = (await ada.decisions(events.PROJECTION_COMPUTED))[-1]
            assert projected.ref == result.projection_ref
            assert projected.payload["intent_id"] == result.intent_id
            assert projected.payload["turn_id"] == result.turn_id
            assert "Never delete files." not in shown["context_text"]
            instructions = ada.provider.requests[-1].variables.get("instructions")
            assert instructions is None or instructions.count("Never delete files.") == 1
        for entry in await read_all(ada.ledgers.ho2m, entry_type=events.WO_PLANNED):
            if entry.payload["wo_type"] == "synthesize":
                turn = entry.payload["turn_id"]
                done = await read_all(ada.ledgers.ho2m, entry_type=events.TURN_COMPLETED, entity_id=turn)
                assert entry.payload["intent_id"] == done[0].payload["intent_id"]
                assert payload_of(entry)["attention"]["projection_ref"] == payload_of(done[0])["projection_ref"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what a model is shown
async def test_recorded_lists_equal_a_recomputation(tmp_path: Path) -> None:
    """A projection on record can be rebuilt from it and from the ledger alone, and sizes do not grow with the session."""
    count, marker = 120, "zanzibar"
    ledger = LedgerConfig(durability="os", linger_ms=0)
    async with talking(tmp_path, ledger=ledger, admission="newest_first", context_budget=400, **ENFORCE) as ada:
        await ada.turns(count, marker)
        entries = await ada.decisions(events.PROJECTION_COMPUTED)
        lists = await rebuilt(entries)
        state = await ada.state()
        said = list(state.turns.values())  # a message and a reply of each turn
        for n in (0, 15, 40, 80, count - 1):
            intent = next(iter(state.intents.values()))
            assert lists[n].eligible == (intent.declared.ref, *[item.ref for item in said[: 2 * n]])
            assert set(lists[n].visible) | {ref for ref, _ in lists[n].suppressed} == set(lists[n].eligible)
            assert lists[n].visible[-1] == (said[2 * n - 1].ref if n else intent.declared.ref)
        bodies = [len(entry.body) for entry in entries]
        assert max(bodies) - min(bodies[1:]) < 40  # positions of more digits
    for path in sorted((places(tmp_path)["context"]).parent.glob("context.jsonl*")):
        if path.is_file():
            assert marker not in path.read_text()


async def test_bridge_mode_declares_real_intent(tmp_path: Path) -> None:
    async with talking(tmp_path, **BRIDGE) as ada:
        declared = await ada.intents()
        assert actions(declared) == ["DECLARED"]
        intent = payload_of(declared[0])["intent_id"]
        assert (declared[0].payload["scope"], declared[0].payload["session_id"]) == ("SESSION", SID)
        results = [await ada.say(message) for message in ("hello", "[switch] hotel", "[close] thanks", "[done] more")]
        assert {result.intent_id for result in results} == {intent}
        assert actions(await ada.intents()) == ["DECLARED"]
        assert "echo: hello" in ada.text()
        planned = await read_all(ada.ledgers.ho2m, entry_type=events.WO_PLANNED)
        assert {entry.payload["intent_id"] for entry in planned} == {intent}
        await ada.supervisor.close_intent(SID, intent, "done")
        after = await ada.say("something new")
        assert after.intent_id not in (intent, None)
        assert "echo: hello" not in ada.text()
        assert actions(await ada.intents()) == ["DECLARED", "CLOSED", "DECLARED"]
        await ada.supervisor.reopen_intent(SID, intent, "there was more")
        assert actions(await ada.intents())[-1] == "REOPENED"


async def test_close_keeps_context_for_its_own_turn(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        first = await ada.say("the address is Main Street 4")
        closing = await ada.say("[close] thanks, and what was the address?")
        assert closing.intent_id == first.intent_id
        assert "Main Street 4" in ada.text()
        entries = [e.entry_type for e in await read_all(ada.ledgers.ho2m, session_id=SID)]
        assert entries.index("INTENT_CLOSED") > max(n for n, kind in enumerate(entries) if kind == "WO_QUALITY_GATE")
        # Whoever says good-bye once more is still spoken to by somebody who remembers, and nothing is opened for it.
        again = await ada.say("[close] bye")
        assert again.intent_id is None
        assert "Main Street 4" in ada.text()
        assert "Goal:" not in ada.text()
        lists = await ada.lists()
        assert lists.eligible == ()
        assert {reason for reasons in lists.reasons.values() for reason in reasons} == {"RECALLED"}
        fresh = await ada.say("a new matter")
        assert fresh.intent_id not in (None, first.intent_id)
        assert "Main Street 4" not in ada.text()


async def test_reopened_intent_brings_its_turns_back(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        first = await ada.say("apples")
        second = await ada.say("[switch] pears")
        assert "apples" not in ada.text()
        back = await ada.say("[back] apples again")
        assert back.intent_id == first.intent_id
        assert "echo: apples" in ada.text()
        assert "pears" not in ada.text()
        there = await ada.say("[back] pears again")
        assert there.intent_id == second.intent_id
        assert "echo: pears" in ada.text()
        assert "apples" not in ada.text()
        assert actions(await ada.intents()) == [
            "DECLARED",
            "DECLARED",
            "SUPERSEDED",
            "REOPENED",
            "SUPERSEDED",
            "REOPENED",
            "SUPERSEDED",
        ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what a model is shown
async def test_old_failures_do_not_pile_up(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_max_failures=59, **ENFORCE) as ada:
        await ada.say("the port is 8080")
        for n in range(60):
            result = await ada.say(f"[fail] {n}")
            assert result.error is not None
        projected = [payload_of(entry) for entry in await ada.decisions(events.PROJECTION_COMPUTED)]
        assert all(each["tokens_used"] <= each["token_budget"] for each in projected)
        assert (await ada.flags()) == ["REPEATED_FAILURE"] * 2
        good = await ada.say("which port?")
        assert good.error is None
        assert ada.text().count("failed") == 1  # the turn directly before it
        clean = await ada.say("and again: which port?")
        assert "failed" not in ada.text()
        assert "8080" in ada.text()
        state = await ada.state()
        assert [wo for wo in state.work_orders.values() if wo.is_live] == []
        assert state.attached(clean.intent_id).failures_in_row == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what a model is shown
async def test_failures_of_aborted_turns_are_put_away_however_many(tmp_path: Path) -> None:
    """A turn that times out abandons nothing; whatever failed in such turns leaves with the next one that completes."""

    async def hang(request: Any) -> None:
        if request.wo_type == "synthesize" and "hang" in request.variables["user_message"]:
            await anyio.sleep_forever()

    async with talking(tmp_path, gate=hang, **BRIDGE) as ada:
        session = await ada.supervisor.session(SID)
        for n in range(120):
            with anyio.move_on_after(10) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ada.say, f"[deaf] hang {n}")
                    while not ada.provider.requests or ada.provider.requests[-1].wo_type != "synthesize":
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            assert not scope.cancelled_caught
            ada.provider.requests.clear()
        assert session.thread is not None
        live = [wo for wo in session.thread.state.work_orders.values() if wo.is_live]
        assert len(live) == 120
        await ada.say("hello")
        assert "more earlier" in ada.text() or "earlier work orders failed" in ada.text()
        await ada.say("hello again")
        assert "failed" not in ada.text()
        assert [wo for wo in session.thread.state.work_orders.values() if wo.is_live] == []


# --- from one mode to another ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intent_mode", ["bridge", "classified"])
@pytest.mark.parametrize("before", ["off", "shadow"])
async def test_enforce_adopts_what_was_before(tmp_path: Path, before: str, intent_mode: str) -> None:
    clock = FakeClock()
    enforce: dict[str, Any] = {**ENFORCE, "intent_mode": intent_mode}
    async with talking(tmp_path, clock, context_mode=before, intent_mode=intent_mode) as ada:
        await ada.say("apples", "pears")
    async with talking(tmp_path, clock, **enforce) as ada:
        assert await ada.intents() == []  # nothing is written until somebody speaks
        result = await ada.say("and now?")
        assert "echo: apples" in ada.text()
        assert "echo: pears" in ada.text()
        assert [(e.payload["adopts_turns"], e.payload["intent_id"]) for e in await ada.intents()] == [(True, result.intent_id)]
        assert (await ada.kept()) == (await ada.state()).snapshot()
    async with talking(tmp_path, clock) as ada:
        off = await ada.say("without it")
        assert (off.intent_id, off.projection_ref) == (None, None)
        assert "echo: and now?" in ada.text()
    async with talking(tmp_path, clock, **enforce) as ada:
        again, number = await ada.say("with it"), len(await ada.intents())
        assert (again.intent_id == result.intent_id) == (intent_mode == "classified")
        assert "echo: apples" in ada.text()
        assert ("echo: without it" in ada.text()) == (intent_mode == "bridge")
        assert (await ada.kept()) == (await ada.state()).snapshot()
        await ada.say("and on")
        assert len(await ada.intents()) == number, "what was attached once stays attached"
        assert await ada.flags() == []


async def test_an_intent_declared_first_leaves_earlier_turns_reachable(tmp_path: Path) -> None:
    """Whoever declares an intent in a session that is older than the Authority does not lose what was said before."""
    clock = FakeClock()
    async with talking(tmp_path, clock) as ada:
        await ada.say("apples")
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        mine = await ada.supervisor.declare_intent(SID, "pears")
        declared = await ada.intents()
        assert [e.payload.get("adopts_turns", False) for e in declared] == [True, False]
        await ada.supervisor.resolve_conflict(SID, keep=payload_of(declared[0])["intent_id"])
        await ada.say("what was it?")
        assert "echo: apples" in ada.text()
        assert mine == declared[1].payload["intent_id"]


# --- after a restart ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["trio"])  # what a model is shown
@pytest.mark.parametrize(
    ("settings", "scope"),
    [
        ({"admission": "newest_first"}, "intent"),
        ({"admission": "lexical", "newest_turns": 1}, "intent"),
        ({"admission": "lexical", "newest_turns": 0}, "subject"),
        ({"context_budget": 4_000}, "intent"),
    ],
)
@pytest.mark.parametrize("rounds", [3, pytest.param(5, marks=pytest.mark.soak)])
async def test_a_restart_changes_no_byte_of_a_projection(
    tmp_path: Path, settings: dict[str, Any], scope: str, rounds: int
) -> None:
    """The index of words, the bases and the fold come back as they were, whatever was ranked before.

    Hashes are left out, because a work order's entry holds the time that its turn had left.
    """
    config = {**ENFORCE, "context_budget": 260, **settings, "recall_scope": scope, "ledger": one_keyring(tmp_path)}
    first = [f"the {thing} is {n} miles away" for n, thing in enumerate(("harbour", "castle", "museum", "station") * rounds)]
    second = ["[switch] hotels", *[f"the hotel {n} has a view of the harbour" for n in range(4 * rounds)]]
    back = ["[back] sights", "how far is the castle?"]
    last = ["and the museum?", "[back] which hotel?", "is there one with a view?", "[back] the harbour"]

    async def run(root: Path, *, is_restarted: bool) -> tuple[list[Any], list[Any]]:
        clock = FakeClock()
        shown = []
        async with talking(root, clock, **config) as ada:
            await ada.start(OTHER)
            await ada.say("my sister lives near the castle", session_id=OTHER)
            await ada.say(*first, *second, *back)
            for message in () if is_restarted else last:
                await ada.say(message)
                shown.append(ada.shown())
        if is_restarted:
            async with talking(root, clock, **config) as ada:
                for message in last:
                    await ada.say(message)
                    shown.append(ada.shown())
        async with talking(root, clock, **config) as ada:
            return shown, [without_hashes(entry.payload) for entry in await ada.decisions(events.PROJECTION_COMPUTED)]

    assert await run(tmp_path / "a", is_restarted=False) == await run(tmp_path / "b", is_restarted=True)


async def test_a_foreign_projection_does_not_lock_the_session(tmp_path: Path) -> None:
    """What another program put on the context ledger may be no base, but it keeps nobody from going on."""
    clock = FakeClock()
    async with talking(tmp_path, clock, **BRIDGE) as ada:
        await ada.turns(20)
        intent = (await ada.say("one more")).intent_id
        base = {"v": 1, "session_id": SID, "subject_id": "ada", "turn_id": "T-0000000a-000099", "intent_id": intent}
        for odd in ({}, {"eligible_refs": {"base": {"x": 1}}}, {"eligible_refs": {"base": None, "edits": [[0, 999]]}}):
            await ada.ledgers.context.write(LedgerEntry(events.PROJECTION_COMPUTED, "T-0000000a-000099", {**base, **odd}))
        await ada.ledgers.context.commit()
    async with talking(tmp_path, clock, **BRIDGE) as ada:
        assert (await ada.say("still there?")).error is None
        assert base_ref((await ada.decisions(events.PROJECTION_COMPUTED))[-1].payload) is None


async def test_sealed_intents_come_back(tmp_path: Path) -> None:
    """With a keyring, what the user wants is unreadable in the file, and the fold is the same."""
    clock, ledger = FakeClock(), LedgerConfig(durability="os", linger_ms=0, keyring=str(tmp_path / "keys"))
    async with talking(tmp_path, clock, ledger=ledger, **ENFORCE) as ada:
        await ada.say("zanzibar", "[switch] quito", "[close] thanks")
        before = await ada.kept()
    for ledger_path in (places(tmp_path)["ho2m"], places(tmp_path)["context"]):
        text = ledger_path.read_text()
        assert "zanzibar" not in text
        assert "quito" not in text
    async with talking(tmp_path, clock, ledger=ledger, **ENFORCE) as ada:
        assert await ada.kept() == before == (await ada.state()).snapshot()
        await ada.say("[back] again")
