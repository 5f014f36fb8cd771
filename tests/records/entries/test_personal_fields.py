"""Each field that may hold a person's words is sealed, and each reference is followed (docs/ledger-entries.md).

A new field of a payload fails here until it is in `SEALED_FIELDS` or, if it says nothing of a person, in `SAYS_NOTHING`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

import pytest

from kitchener.records import events
from kitchener.records.entries import CommonPayload, Json, ListedRefMapping, RefMapping, Sealed, SealedText
from kitchener.records.ref import RefGroup
from tests.records.entries.payload_fields import fields_of, objects_in, parts_of, texts_in
from tests.records.entries.shapes import Shape, every_shape

VERIFIER = Path(__file__).resolve().parents[3] / "verify" / "verify.mjs"
SHAPES: Final = [pytest.param(*each, id=f"{each[0]}-{each[1].__name__}") for each in every_shape()]

OF_ANY: Final = re.compile(
    r".*_(id|ids|hash|ts|at)|hash|timestamp|namespace|scope|signer|agent_class|idempotency_key|read_positions"
)
"""Names that mean one thing in each entry: ids, hashes, times, and words that the program chose, which security.md lists."""

SAYS_NOTHING: Final = {
    "the ids of other entries, work orders, requests, sessions or learned lines": (
        "ConstraintsMapping.grants",
        "GatheredContext.biases",
        "ImportedPayload.import_of",
        "OverlayDeactivatedPayload.superseded_by",
        "ProjectionPayload.eligibility_reasons",
        "RefGroup.entries",
        "ResumesMapping.loop",
        "ResumesMapping.void",
        "ShadowDecisionPayload.decided_after",
        "SimilarityMapping.scores",
        "SuppressedGroup.entries",
        "TurnCompletedPayload.pending_approval",
        "WorkOrderDeferredPayload.blocked_by",
    ),
    "stored signal ids, which are keyed if they have free words": (
        "OverlayDeactivatedPayload.target",
        "QuarantinePayload.target",
        "SignalPayload.signals",
        "TurnCompletedPayload.consolidation_candidates",
    ),
    "hashes and signatures": (
        "AuthorityMapping.sig",
        "SignerDeclaredPayload.public_key",
        "TurnStartedPayload.client_tools",
        "TurnStartedPayload.output_schema",
        "TurnStartedPayload.parts",
    ),
    "times": ("OverlayPayload.window_end", "OverlayPayload.window_start"),
    "the subject's id": ("OverlayDeactivatedPayload.erased_subject", "QuarantinePayload.erased_subject"),
    "the names of tools and their servers, which are never a model's: another name is in the error": (
        "ApprovalRequestedPayload.tool",
        "ConstraintsMapping.allowed_tools",
        "ConstraintsMapping.ask_after_untrusted",
        "ConstraintsMapping.ask_tools",
        "ConstraintsMapping.client_tools",
        "ConstraintsMapping.deny_after_untrusted",
        "ConstraintsMapping.tool_choice",
        "CostMapping.tool_ids_used",
        "ToolCallPayload.source",
        "TurnStartedPayload.tool_choice",
    ),
    "words of the settings, or the names of the operator's sources": (
        "ApprovalRequestedPayload.rule",
        "ConstraintsMapping.domain_tags",
        "ModelCallPayload.prompt_pack_version",
        "OverlayPayload.model",
        "OverlayPayload.prompt_pack_version",
        "SimilarityMapping.model",
        "SourceRecordedPayload.name",
    ),
    "words of a closed set that another program may extend": (
        "ConversationImportedPayload.format",
        "IntentDeclaredPayload.created_by",
        "PartAttachedPayload.media_type",
        "SessionImportedPayload.format",
        "TurnStartedPayload.media_types",
    ),
    "words of another program: Kitchener does not write these entries": (
        "WorkOrderReopenedPayload.reason",
        "WorkOrderRetiredPayload.reason",
    ),
    "sentences of the code about ids and numbers, which take no word of a message or a model": (
        "AttemptFailedPayload.route_reason",
        "AttemptStartedPayload.route_reason",
        "ConflictFlagPayload.detail",
        "ModelCallPayload.route_reason",
        "ShadowDecisionPayload.reason",
    ),
    "words of the operator or program, who are told that they are never encrypted": (
        "LifecycleVoidedPayload.reason",
        "SessionEndPayload.reason",
    ),
    "an entry of another root, whose own fields are sealed as they were there": ("ImportedPayload.entry",),
}
"""Fields that may hold text and are never sealed, by what they hold."""

KNOWN: Final = frozenset(each for fields in SAYS_NOTHING.values() for each in fields)
NOT_FOLLOWED: Final = {(events.PROJECTION_COMPUTED, "history")}
"""References that name an entry of `visible_refs` again. Proofs made by earlier versions need not have a row for it."""


def unsealed(entry_type: str, shape: Shape) -> Iterator[str]:
    """The fields that may hold text, are not sealed and are not known to say nothing of a person."""
    for owner, name in texts_in(shape, events.SEALED_FIELDS.get(entry_type, ())):
        if not OF_ANY.fullmatch(name) and f"{owner}.{name}" not in KNOWN:
            yield f"{owner}.{name}"


def with_references(shape: Shape) -> set[str]:
    """The fields that are references or contain some."""
    refs = {RefMapping, ListedRefMapping, RefGroup}
    return {name for name, kind in fields_of(shape).items() if not refs.isdisjoint(objects_in(kind))}


@pytest.mark.parametrize(("entry_type", "shape"), SHAPES)
def test_a_field_that_may_hold_a_persons_words_is_sealed(entry_type: str, shape: Shape) -> None:
    assert [*unsealed(entry_type, shape)] == []


@pytest.mark.parametrize(("entry_type", "shape"), SHAPES)
def test_a_field_is_sealed_if_its_type_says_so(entry_type: str, shape: Shape) -> None:
    said = {name for name, kind in fields_of(shape).items() if Sealed in parts_of(kind)}
    assert said == set(events.SEALED_FIELDS.get(entry_type, ()))


@pytest.mark.parametrize(("entry_type", "shape"), SHAPES)
def test_a_field_with_references_is_followed(entry_type: str, shape: Shape) -> None:
    found = {name for name in with_references(shape) if (entry_type, name) not in NOT_FOLLOWED}
    assert found == set(events.REF_FIELDS.get(entry_type, ()))


def test_the_verifier_follows_the_same_references() -> None:
    table = VERIFIER.read_text(encoding="utf-8").partition("const REFS = new Map(Object.entries({")[2].partition("}))")[0]
    found = {name: set(re.findall(r"'(\w+)'", fields)) for name, fields in re.findall(r"(\w+): \[([^\]]*)\]", table)}
    assert found == {name: set(fields) for name, fields in events.REF_FIELDS.items()}


def test_the_tables_name_only_fields_that_need_it() -> None:
    texts = {
        f"{owner}.{name}"
        for entry_type, shape in every_shape()
        for owner, name in texts_in(shape, events.SEALED_FIELDS.get(entry_type, ()))
        if not OF_ANY.fullmatch(name)
    }
    assert texts == KNOWN
    assert len(KNOWN) == sum(map(len, SAYS_NOTHING.values()))
    for entry_type, name in NOT_FOLLOWED:
        assert name in {each for kind, shape in every_shape() if kind == entry_type for each in with_references(shape)}


class Inner(TypedDict):
    """An object of a payload."""

    note: str
    about: list[ListedRefMapping]


class ForgottenPayload(CommonPayload):
    """A payload whose author forgot both tables."""

    text: str
    words: SealedText
    lists: dict[str, list[str]] | None
    answer: Json
    given: object
    inner: list[Inner]
    ref: RefMapping | None
    count: int
    note_id: str


def test_what_an_author_forgets_is_told() -> None:
    assert [*unsealed("FORGOTTEN", ForgottenPayload)] == [
        *(f"ForgottenPayload.{name}" for name in ("text", "words", "lists", "answer", "given")),
        "Inner.note",
    ]
    assert with_references(ForgottenPayload) == {"inner", "ref"}
