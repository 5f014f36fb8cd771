"""Why a prompt does not begin as the one before: a break always has a cause, and what goes on has none."""

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.tuning.prompt_prefixes import (
    CAUSES,
    BreakCause,
    PromptPrefix,
    TurnPrefix,
    break_causes,
    causes_text,
    session_breaks,
)

ENTRIES = [f"E-{n}" for n in range(12)]
PLAIN = PromptPrefix(
    "local",
    "m",
    ("look",),
    "PRM@1",
    "Be brief.",
    intent_id="INT-1",
    learned_lines=("OVL-1",),
    stable_hash="sha256:a",
    history=tuple(ENTRIES[2:6]),
)
names = st.sampled_from("abc")
windows = st.builds(lambda a, b: tuple(ENTRIES[min(a, b) : max(a, b)]), st.integers(0, 12), st.integers(0, 12))
prefixes = st.builds(
    PromptPrefix,
    provider_id=names,
    model_id=names,
    tools=st.lists(names, max_size=2).map(tuple),
    prompt_pack=names,
    instructions=names,
    output=names,
    unread_settings=names,
    intent_id=st.none() | names,
    learned_lines=st.lists(names, max_size=2).map(tuple),
    stable_hash=names,
    history=st.none() | windows | st.lists(st.sampled_from(ENTRIES), max_size=4, unique=True).map(tuple),
    is_cut=st.booleans(),
)


def begins_as(before: PromptPrefix, now: PromptPrefix) -> bool:
    """What a cache sees: everything before the history equal, and the history appended to at most."""
    parts = ("provider_id", "model_id", "tools", "prompt_pack", "instructions", "output", "unread_settings", "stable_hash")
    if any(getattr(before, part) != getattr(now, part) for part in parts) or (before.history is None) != (now.history is None):
        return False
    then, shown = before.history or (), now.history or ()
    return len(shown) >= len(then) and all(one == two for one, two in zip(then, shown, strict=False))


@given(prefixes, prefixes)
def test_a_break_has_a_cause_and_what_goes_on_has_none(before: PromptPrefix, now: PromptPrefix) -> None:
    causes = break_causes(before, now)
    assert (causes == ()) is begins_as(before, now)
    order = list(get_args(BreakCause))
    assert list(causes) == sorted(set(causes), key=order.index), "each once, in the order of the parts of a prompt"


@given(prefixes, st.lists(st.sampled_from(ENTRIES), max_size=4))
def test_appended_messages_break_nothing(before: PromptPrefix, added: Sequence[str]) -> None:
    now = before._replace(history=None if before.history is None else (*before.history, *added))
    assert break_causes(before, now) == ()


@given(windows.filter(len), st.integers(1, 12), st.booleans(), st.booleans())
def test_messages_that_left_the_beginning_had_no_room_or_no_reason(
    history: tuple[str, ...], gone: int, is_cut: bool, has_no_room: bool
) -> None:
    before = PLAIN._replace(history=history)
    eligible = frozenset(history if has_no_room else history[gone:])
    now = before._replace(history=(*history[gone:], "E-new"), is_cut=is_cut, eligible=eligible)
    if gone >= len(history):
        assert break_causes(before, now) == ("history",), "nothing that was shown is shown still"
    else:
        assert break_causes(before, now) == ("crowded_out" if is_cut else "evicted" if has_no_room else "left",)
        assert break_causes(now._replace(history=history[gone:]), before) == ("readmitted",)


@pytest.mark.parametrize(
    ("changed", "causes"),
    [
        ({"provider_id": "far", "model_id": "m2"}, ("provider",)),
        ({"model_id": "m2"}, ("model",)),
        ({"tools": ()}, ("tools",)),
        ({"prompt_pack": "PRM@2"}, ("prompt_pack",)),
        ({"instructions": "Be kind."}, ("instructions",)),
        ({"unread_settings": "sha256:c"}, ("settings",)),
        ({"output": "sha256:d"}, ("output",)),
        ({"stable_hash": "sha256:b"}, ("goals",)),
        ({"stable_hash": "sha256:b", "learned_lines": ("OVL-2",)}, ("learned_lines",)),
        ({"stable_hash": "sha256:b", "intent_id": "INT-2", "history": ()}, ("intent",)),
        ({"history": ()}, ("left",)),
        ({"history": (), "eligible": None}, ("evicted",)),
        ({"history": (), "eligible": None, "intent_id": "INT-2", "stable_hash": "sha256:b"}, ("goals", "evicted")),
        ({"eligible": None, "intent_id": "INT-2", "stable_hash": "sha256:b"}, ("intent",)),
        ({"history": (), "eligible": frozenset(ENTRIES)}, ("evicted",)),
        ({"history": ("E-3", "E-5")}, ("history",)),
        ({"history": None}, ("layout",)),
        ({"intent_id": "INT-2"}, ()),
        ({"tools": (), "history": tuple(ENTRIES[3:7])}, ("tools", "left")),
    ],
)
def test_each_change_has_its_own_cause(changed: dict[str, Any], causes: tuple[BreakCause, ...]) -> None:
    found = break_causes(PLAIN, PLAIN._replace(**changed))
    assert found == causes
    assert causes_text(found).split("; ") == ([CAUSES[each] for each in causes] if causes else [""])


def test_each_turn_of_a_session_is_compared_with_the_one_before() -> None:
    shown = [PLAIN, PLAIN, PLAIN._replace(tools=(), history=()), PLAIN._replace(tools=(), history=("E-9",))]
    breaks = session_breaks([TurnPrefix(f"T-{n}", each) for n, each in enumerate(shown)])
    assert breaks == {"T-1": (), "T-2": ("tools", "left"), "T-3": ()}
