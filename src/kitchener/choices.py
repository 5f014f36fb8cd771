"""The closed sets of words that settings share with records, or with the code that follows the settings, each as one type.

The type check refuses a comparison with a word outside of the set. A set that only one layer names belongs to that layer.
What each word means is said by its setting in `kitchener.config`.
"""

from typing import Final, Literal, get_args

ContextMode = Literal["off", "shadow", "enforce"]
RecallScope = Literal["intent", "session", "subject"]
AdmissionOrder = Literal["lexical", "newest_first"]
PromptLayout = Literal["chat", "block"]

IntentMode = Literal["bridge", "classified"]
ConflictPolicy = Literal["block", "most_recent_wins"]
SharedIntentPolicy = Literal["parent", "active"]
UnclearPolicy = Literal["continue_and_flag", "continue", "declare", "ask"]
InvalidLifecyclePolicy = Literal["ignore_event", "block"]
RepeatedFailurePolicy = Literal["flag", "defer"]
ContinueAfterClose = Literal["declare", "reopen"]

OverlapPolicy = Literal["queue", "reject", "replace"]

LabelKind = Literal["domain", "task"]
"""The two kinds of labels: what a message is about, and what is to be done."""
LABEL_KINDS: Final[tuple[LabelKind, ...]] = get_args(LabelKind)
