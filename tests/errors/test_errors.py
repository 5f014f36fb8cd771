"""The tree of errors as it is drawn, and the facts that each error carries."""

import copy
import inspect
import pickle
import re
from typing import Any, get_args

import pytest

import kitchener
from kitchener import errors
from kitchener.errors import RETRYABLE_REASONS, KitchenerError, ProviderError, ProviderReason
from kitchener.model_usage import Usage


def drawn() -> dict[str, str | None]:
    """Each class of the picture in the docstring, and the one above it."""
    above: list[tuple[int, str]] = []
    tree: dict[str, str | None] = {}
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]  # the module has a docstring
        found = re.match(r"(?P<indent> {4}[ │├└─]*)(?P<names>[A-Z]\w+(?:, [A-Z]\w+)*)$", line)
        if found:
            depth = len(found["indent"])
            while above and above[-1][0] >= depth:
                above.pop()
            names = found["names"].split(", ")
            tree.update(dict.fromkeys(names, above[-1][1] if above else None))
            above.append((depth, names[-1]))
    return tree


def defined() -> dict[str, type[KitchenerError]]:
    """Each error class that the module defines."""
    return {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, KitchenerError) and each.__module__ == errors.__name__
    }


def test_the_picture_is_the_tree() -> None:
    tree: dict[str, str | None] = {name: each.__bases__[0].__name__ for name, each in defined().items()}
    tree["KitchenerError"] = None  # its parent is Python's
    assert drawn() == tree


def test_no_error_stands_outside_the_tree() -> None:
    classes = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, BaseException)]
    assert [each for each in classes if not issubclass(each, KitchenerError)] == []


def test_every_error_has_one_parent_and_says_what_it_is() -> None:
    for name, each in defined().items():
        own = [parent for parent in each.__bases__ if parent is not ValueError]  # some are a caller's wrong value, too
        assert len(own) == 1, name
        assert each.__dict__.get("__doc__"), name


def test_an_error_exported_by_the_package_is_one_of_the_tree() -> None:
    for name in set(kitchener.__all__) - {"ConfirmationRequired"}:  # no failure: a tool raises it to ask a person
        exported = getattr(kitchener, name)
        if inspect.isclass(exported) and issubclass(exported, Exception):
            assert defined()[name] is exported


FACTS: dict[str, Any] = {
    "others": ("SALES", "CLERK"),
    "result": None,
    "approval_id": "WO-SES-0123abcd-002.1",
    "decision": "denied",
    "of_client": True,
    "intent_id": "INT-0123456789abcdef",
    "signal_id": "mood:sad",
    "artifact_id": "ART-0123456789ab",
    "namespace": "ADMIN/ada",
    "source": "kitchener.toml",
    "key": "limits.max_nesting",
    "value": "17",
    "expected": "at most 16",
    "session_id": "SES-00000001",
    "subject_id": "ada",
    "agent_class": "ADMIN",
    "what": "subject",
    "found": "bo",
    "turn_id": "T-00000001-000001",
    "tool_id": "send",
    "wo_id": "WO-SES-00000001-001",
    "state": "planned",
    "to": "completed",
    "limit": 8,
    "seconds": 1.5,
    "waited_for": "attempt 1 at provider 'it' failed: timeout",
    "path": "ho2m.jsonl",
    "line": 3,
    "offset": 512,
    "field": "entry_hash",
    "holder": "process 7",
    "problem": "out of space",
    "ledger_id": "HO2M:ADMIN",
    "entry_type": "LLM_CALL",
    "size": 2_000_000,
    "provider_id": "local",
    "reason": "rate_limited",
    "detail": "slow down",
    "status": 429,
    "retry_after_s": 2.0,
    "output_begun": True,
    "only_thoughts": True,
    "usage": Usage(900, 100),
    "message": "it cannot be",
    "kind": "NotOnRecord",
    "name": "photo.png",
    "media_type": "image/png",
    "accepted": ("audio/*",),
    "content_hash": "sha256:0123456789",
}
"""A value for each fact that an error may carry."""
UNSAID = {
    "status",
    "retry_after_s",
    "output_begun",
    "only_thoughts",
    "usage",
    "expected",
    "accepted",
    "kind",
    "result",
    "of_client",
    "others",
}
"""Facts that are for programs, and not in the text."""
WITH_FACTS = {name: each for name, each in defined().items() if "__init__" in vars(each)}


def arguments(kind: type[KitchenerError]) -> dict[str, Any]:
    """A value for each argument of an error's constructor."""
    return {name: FACTS[name] for name in inspect.signature(kind).parameters}


def made(kind: type[KitchenerError]) -> KitchenerError:
    values = arguments(kind)
    positional = [
        values.pop(name)
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    return kind(*positional, **values)


@pytest.mark.parametrize("name", defined())
def test_an_error_reaches_another_process_as_it_is(name: str) -> None:
    """As from a worker of Celery, or of a pool of processes. Regression: an error that could not be read broke such a pool."""
    kind = defined()[name]
    error = kind("a text") if kind.__init__ is KitchenerError.__init__ else made(kind)
    error.add_note("seen in a worker")
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(same), str(same), vars(same)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("name", WITH_FACTS)
def test_an_error_carries_its_facts_and_names_them(name: str) -> None:
    error = made(WITH_FACTS[name])
    text = str(error)
    for fact, value in arguments(WITH_FACTS[name]).items():
        assert getattr(error, fact) == value
        if fact not in UNSAID or name == "LedgerDamaged":
            assert str(value) in text, fact
    assert "\n" not in text


@pytest.mark.parametrize("name", [name for name, each in defined().items() if not issubclass(each, tuple(WITH_FACTS.values()))])
def test_an_error_without_facts_is_its_text(name: str) -> None:
    assert str(defined()[name]("it is the oven")) == "it is the oven"


def test_a_setting_without_a_key_or_a_value_reads_well() -> None:
    assert str(errors.ConfigError("kitchener.toml", "", "", "not valid TOML")) == "kitchener.toml: not valid TOML"
    assert str(errors.ConfigError("kitchener.toml", "a.b", "", "is required")) == "kitchener.toml: a.b: is required"
    assert str(errors.ConfigError("kitchener.toml", "a.b", "5", "must be text")) == "kitchener.toml: a.b = 5: must be text"


def test_a_refused_value_without_a_path_reads_well() -> None:
    assert str(errors.EntryRefused("", "is not a JSON type")) == "value: is not a JSON type"


@pytest.mark.parametrize("reason", get_args(ProviderReason))
def test_the_first_seven_reasons_are_worth_another_attempt(reason: ProviderReason) -> None:
    error = ProviderError("local", reason, "x")
    assert error.is_retryable == (reason in get_args(ProviderReason)[:7])
    assert error.is_retryable == (reason in RETRYABLE_REASONS)
    assert (error.status, error.retry_after_s, error.output_begun) == (None, None, False)


def test_an_error_that_says_nothing_of_a_retry_is_caught_as_what_it_is() -> None:
    with pytest.raises(errors.LedgerError):
        raise made(errors.LedgerTailMissing)
    with pytest.raises(errors.CallerError):
        raise made(errors.SessionEnded)
