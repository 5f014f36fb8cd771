"""Turns a classification and a chain of work orders into signals and labels: what the memory counts of a turn. Pure.

The memory counts signals without knowing their meaning, and its gate decides what is learned from them (`memory/gate.py`). This
module knows no ledgers, models or time. Explained in `docs/memory.md`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from kitchener.actors.work.plan import UNCLASSIFIED
from kitchener.choices import LABEL_KINDS, LabelKind
from kitchener.records.events import POLICY_VERSION
from kitchener.records.outputs import Classification
from kitchener.records.work_order import WorkOrder

Vocabulary = Mapping[str, Mapping[str, str]]
"""Allowed labels of each kind, by case-folded spelling. A kind without an entry allows any label."""
ANY_LABEL: Final[Vocabulary] = MappingProxyType({})
"""The vocabulary that allows any label; the default."""


def vocabulary_of(labels: Mapping[LabelKind, Iterable[str]]) -> Vocabulary:
    """Builds the look-up form of a configured vocabulary. A kind without labels allows any label."""
    return {kind: {each.casefold(): each for each in own} for kind, own in labels.items() if own}


def signals_of(
    classification: Classification,
    chain: Iterable[WorkOrder],
    vocabulary: Vocabulary = ANY_LABEL,
    *,
    policy_version: int = POLICY_VERSION,
) -> list[str]:
    """Returns the signals of a turn, from the subject's request and the work orders that were executed.

    Recalled memory and configured text give no signals, so a learned line cannot reinforce itself by being shown.

    Args:
        classification: the classify work order's output
        chain: the turn's work orders, including retries
        vocabulary: a label outside of it gives no signal
        policy_version: version of the rules
    """
    found = []
    speech_act = classification.get("speech_act")
    if speech_act and classification is not UNCLASSIFIED:
        found.append(f"intent:{speech_act}")
    outcome = "unknown"
    for wo in chain:
        found += [f"tool:{tool_id}" for tool_id in wo.cost.tool_ids_used]
        # An abandoned attempt was not covered by the budget. Version 1 counted it as failed.
        if wo.wo_type == "synthesize" and wo.state != "deferred" and (wo.state != "abandoned" or policy_version == 1):
            outcome = "success" if wo.state == "completed" else "failed"
    labels = labels_of(classification, vocabulary)
    found += [f"{kind}:{labels[kind]}" for kind in LABEL_KINDS if kind in labels]
    return [*found, f"outcome:{outcome}"]


def labels_of(classification: Classification, vocabulary: Vocabulary = ANY_LABEL) -> dict[str, str]:
    """Returns the turn's labels, at most one of each kind, in the vocabulary's spelling. Labels outside of it are dropped."""
    labels = classification.get("labels")
    found: dict[str, str] = {}
    for kind in LABEL_KINDS:
        label = labels.get(kind) if isinstance(labels, Mapping) else None
        if isinstance(label, list | tuple) and label:
            label = label[0]
        if not isinstance(label, str) or not label:
            continue
        known = vocabulary.get(kind)
        if known is None:
            found[kind] = label
        elif (spelled := known.get(label.strip().casefold())) is not None:
            found[kind] = spelled
    return found
