"""A subject's turns that may be recalled: a limit on what is in memory, and the same turns however they are read."""

from pathlib import Path

from kitchener.actors.authority.subject_turns import SubjectTurns, SubjectView
from kitchener.runtime import Runtime
from tests.acceptance.stack import open_scripted


async def talk(runtime: Runtime, sessions: int, turns: int) -> list[int]:
    """Lets ada speak in several sessions; where HO2m ended after each turn."""
    ends = []
    for session in range(sessions):
        session_id = await runtime.supervisor().start_session(subject_id="ada")
        for turn in range(turns):
            await runtime.supervisor().handle_turn(f"{session} {turn} {'word ' * 20}", session_id=session_id)
            ends.append(runtime.ledgers().ho2m.head()[0])
    return ends


def ids(view: SubjectView) -> list[str]:
    """What is in memory of a subject."""
    return [item.entity_id for item in view.words.turns]


async def test_one_subject_has_no_more_in_memory_than_all_may_have_and_keeps_the_same_turns(tmp_path: Path) -> None:
    """Read at once, or as turns complete: the first turns up to the limit are known, and a later view knows no fewer."""
    async with open_scripted(tmp_path) as runtime:
        ends = await talk(runtime, 3, 4)
        ledgers = runtime.ledgers()
        whole = await SubjectTurns(ledgers, len, 1_024).of("ada", ends[-1])
        assert whole.known == 12
        size = len(whole.words.turns[0].text)
        limit = 5 * size + size // 2

        at_once = await SubjectTurns(ledgers, len, 1_024, max_chars=limit).of("ada", ends[-1])
        assert at_once.known == 5
        turns = SubjectTurns(ledgers, len, 1_024, max_chars=limit)
        step_by_step = [await turns.of("ada", end) for end in ends]
        assert [view.known for view in step_by_step] == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5]
        assert ids(step_by_step[-1]) == ids(at_once) == ids(whole)[:5]
        assert sum(len(item.text) for item in step_by_step[-1].words.turns) <= limit


async def test_a_long_history_is_read_in_parts_and_whole(tmp_path: Path) -> None:
    async with open_scripted(tmp_path) as runtime:
        ends = await talk(runtime, 2, 150)
        view = await SubjectTurns(runtime.ledgers(), len, 1_024).of("ada", ends[-1])
        assert view.known == 300
        assert [item.place for item in view.words.turns] == sorted(item.place for item in view.words.turns)
