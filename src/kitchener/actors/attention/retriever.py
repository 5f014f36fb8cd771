"""Gathers context fragments for a turn within budgets of tokens, reads and time, and joins them into one text.

It fails open: if a budget runs out or a reader fails, the context is smaller and names the cause. A `ContextProvider` supplies
the fragments. The turn decides whether the model sees them. Explained in `docs/attention.md`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, NotRequired, Protocol, TypedDict

import anyio

from kitchener.actors.attention.templates import AttentionTemplate, load_templates, resolve_template
from kitchener.cancellation import failed_alone
from kitchener.canonical import digest
from kitchener.config import HO2Config
from kitchener.context.fold.items import Item, rule_ref
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.entries import CutReason
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens

logger = get_logger(__name__)

EMPTY_HASH: Final = digest(b"")

_WORD = re.compile(r"\w{3,}")
_COMMON = frozenset(
    """about also and are but can could for from has have here how into its just like need not please than that the then
    there they them this want was were what when where which who will with would you your""".split()  # noqa: SIM905
)


class FragmentMapping(TypedDict):
    """A `ContextFragment` in the input of a work order."""

    source: str
    source_id: str
    token_estimate: int


class AssembledContext(TypedDict):
    """The context in the input of a work order."""

    context_text: str
    context_hash: str
    fragments: list[FragmentMapping]
    """The fragments in the text, then the learned lines."""
    ho3_biases: NotRequired[list[str]]
    """The learned lines."""
    stable_text: NotRequired[str]
    """Text that seldom changes, such as goals; only in chat layout."""
    history: NotRequired[list[str]]
    """Chat messages, alternately of the user and the agent, oldest first; only in chat layout."""


@dataclass(frozen=True, slots=True)
class ContextFragment:
    """One piece of gathered context."""

    source: str
    """The kind of source: `HO2M`, `HO1M`, `HO3M`, `standing_rule` …"""
    source_id: str
    """The id in the source: a turn id or a rule's number."""
    content: str
    """The text."""
    token_estimate: int
    """Estimated size of the text in tokens."""
    relevance_score: float = 1.0
    """1 for a fragment that is shown with every message; else the share of the message's words found in it."""
    ref: Ref | None = None
    """The ledger entry of the fragment; None: it has none."""
    timestamp: str = ""
    """Timestamp of that entry; "": not known."""
    said: tuple[str, ...] = ()
    """A turn as chat messages, alternately of the user and the agent; (): the turn is shown as `content`."""

    def located(self, ref: Ref, timestamp: str) -> "ContextFragment":
        """This fragment with the entry that holds it. `dataclasses.replace` takes 1 % of a turn for each learned line."""
        return ContextFragment(
            self.source, self.source_id, self.content, self.token_estimate, self.relevance_score, ref, timestamp, self.said
        )

    def as_mapping(self) -> FragmentMapping:
        """Source, id and size as JSON types. The content is omitted, because the context's text contains it."""
        return {"source": self.source, "source_id": self.source_id, "token_estimate": self.token_estimate}


class BudgetUsed(NamedTuple):
    """What gathering used of its budgets, and the limit that cut it short; `cut_by` is None if no limit did."""

    tokens: int = 0
    queries: int = 0
    elapsed_ms: int = 0
    cut_by: CutReason | None = None


class AttentionContext(NamedTuple):
    """The context of a turn: its text and the fragments in it."""

    context_text: str = ""
    """The text for the model."""
    context_hash: str = EMPTY_HASH
    """`sha256:` of the text."""
    fragments: tuple[ContextFragment, ...] = ()
    """The fragments in the text."""
    template_id: str = ""
    """The attention template that set the limits."""
    budget_used: BudgetUsed = BudgetUsed()
    """What gathering used of its budgets."""
    biases: tuple[ContextFragment, ...] = ()
    """Learned lines, best first. They are shown beside `context_text`, not in it."""
    projection_ref: Ref | None = None
    """The recorded projection that this context shows; None: attention gathered it."""
    parts: tuple[StoredPart, ...] = ()
    """Images and files of earlier turns that are shown again, in the order of the projection, then those of the message."""
    stable_text: str = ""
    """Text that seldom changes, such as goals, and stands before the history; "": there is none."""
    history: tuple[str, ...] | None = None
    """Chat messages, alternately of the user and the agent, oldest first; None: turns are part of `context_text`."""

    def as_assembled(self) -> AssembledContext:
        """The `assembled_context` of a work order."""
        assembled: AssembledContext = {
            "context_text": self.context_text,
            "context_hash": self.context_hash,
            "fragments": [fragment.as_mapping() for fragment in (*self.fragments, *self.biases)],
        }
        if self.biases:
            assembled["ho3_biases"] = [fragment.content for fragment in self.biases]
        if self.history is not None:
            assembled["stable_text"], assembled["history"] = self.stable_text, [*self.history]
        return assembled


class ContextProvider(Protocol):
    """Supplies context fragments. A provider that never waits may set `never_waits = True` and then gets no time limit.

    A provider whose registry never changes may have its fragments as `fixed_rules`, which are laid out only once.
    """

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's newest turns, oldest first."""
        ...

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's turns that match the query, best first."""
        ...

    async def read_registry(self) -> Sequence[ContextFragment]:
        """Configured fragments that apply in every turn."""
        ...


ReadFragments = Callable[[], Awaitable[Sequence[ContextFragment]]]
"""Performs a read when called."""
_Gathered = tuple[list[Sequence[ContextFragment]], int, CutReason | None]
"""The results of the reads, the elapsed milliseconds, and the limit that cut gathering."""

_source_id = attrgetter("source_id")


class AttentionRetriever:
    """Gathers context within the tighter of the template's and the agent's limits.

    Args:
        context_provider: supplies the fragments
        config: the agent's limits
        template: the attention template of the agent class; None: the shipped one for it
        is_chat: whether the newest turns are shown as chat messages (`ContextFragment.said`)
    """

    def __init__(
        self,
        context_provider: ContextProvider,
        config: HO2Config,
        template: AttentionTemplate | None = None,
        *,
        is_chat: bool = False,
    ) -> None:
        template = template or resolve_template(load_templates(), config.agent_class)
        self._provider = context_provider
        self._never_waits = bool(getattr(context_provider, "never_waits", False))
        self._recent_turns, self._max_matches = config.recent_turns, config.attention_matches
        self._is_chat = is_chat
        self.template_id: str = template.template_id
        self._max_tokens = min(config.attention_budget_tokens, template.budget.max_context_tokens)
        self._max_queries = min(config.attention_budget_queries, template.budget.max_queries)
        self._timeout_s = min(config.attention_timeout_ms, template.budget.timeout_ms) / 1_000
        fixed: Sequence[ContextFragment] | None = getattr(context_provider, "fixed_rules", None)
        self._rules = self._laid_out(fixed, 1, 0, None) if fixed is not None else None

    async def horizontal_scan(self, session_id: str, query: str, results: Sequence[Item] = ()) -> AttentionContext:
        """Gathers the session's newest turns, results of its tools, and the turns that match the query, oldest first.

        Args:
            session_id: the session
            query: the user's message
            results: results of tools of earlier turns, oldest first, made with `result_item`
        """
        recent_turns, max_matches = self._recent_turns, self._max_matches
        reads: list[ReadFragments] = []
        if recent_turns:
            reads.append(partial(self._provider.read_ledger_entries, session_id, limit=recent_turns))
        if max_matches:
            reads.append(partial(self._provider.search_text, session_id, query, limit=max_matches + recent_turns))
        lists, elapsed_ms, cut_by = await self._gather(reads)
        recent = lists[0] if recent_turns and lists else ()
        matches = lists[-1] if len(lists) == len(reads) and max_matches else ()
        if matches:
            known = {fragment.source_id for fragment in recent}
            matches = [found for found in matches if found.source_id not in known][:max_matches]
            if self._is_chat:
                matches = [replace(found, said=()) for found in matches]
        found = [*reversed(recent), *map(_result_fragment, reversed(results)), *matches]
        return self._laid_out(found, len(lists), elapsed_ms, cut_by)

    async def priority_probe(self, read_anchors: ReadFragments | None = None) -> AttentionContext:
        """Gathers what comes before everything else: the standing rules, and the learned lines of long-term memory as `biases`.

        Args:
            read_anchors: reads the learned lines that match the message, best first. They have a token budget of their own
                (`ho3_bias_budget`), so the limits of attention do not cut them. None: memory is not used
        """
        found = self._rules
        if found is None:
            lists, elapsed_ms, cut_by = await self._gather([self._provider.read_registry])
            found = self._laid_out(lists[0] if lists else (), len(lists), elapsed_ms, cut_by)
        return found if read_anchors is None else found._replace(biases=tuple(await read_anchors()))

    def assemble_wo_context(
        self,
        horizontal: AttentionContext,
        priority: AttentionContext,
        user_message: str,
        classification: Mapping[str, object],
    ) -> AttentionContext:
        """Merges both contexts into one: `priority` first, without duplicates, cut to the token budget.

        Learned lines are kept beside the text. The text does not repeat the message and its classification, because the work
        order contains them.
        """
        if not priority.fragments and priority.budget_used.cut_by is None:
            return horizontal._replace(biases=priority.biases) if priority.biases else horizontal
        merged = {(f.source, f.source_id): f for f in (*priority.fragments, *reversed(horizontal.fragments))}
        first, second = priority.budget_used, horizontal.budget_used
        queries, elapsed_ms = first.queries + second.queries, first.elapsed_ms + second.elapsed_ms
        found = self._laid_out(list(merged.values()), queries, elapsed_ms, first.cut_by or second.cut_by)
        return found._replace(biases=priority.biases) if priority.biases else found

    def _gather(self, reads: Sequence[ReadFragments]) -> Awaitable[_Gathered]:
        """Runs as many reads as the limits allow. A read that fails ends the gathering."""
        return self._read_all(reads, []) if self._never_waits else self._read_in_time(reads)

    async def _read_in_time(self, reads: Sequence[ReadFragments]) -> _Gathered:
        started = anyio.current_time()
        lists: list[Sequence[ContextFragment]] = []
        cut_by: CutReason | None = "time"
        with anyio.CancelScope(deadline=started + self._timeout_s):
            _, _, cut_by = await self._read_all(reads, lists)
        return lists, int((anyio.current_time() - started) * 1_000), cut_by

    async def _read_all(self, reads: Sequence[ReadFragments], lists: list[Sequence[ContextFragment]]) -> _Gathered:
        """Appends each result to `lists`, so that results from before a timeout are kept."""
        for read in reads:
            if len(lists) >= self._max_queries:
                return lists, 0, "queries"
            try:
                lists.append(await read())
            except BaseException as error:  # a user's provider may raise anything; a smaller context is better than no reply
                if not await failed_alone(error):
                    raise
                logger.warning("context reader failed", error=origin_of(error))
                return lists, 0, "error"
        return lists, 0, None

    def _laid_out(
        self, admitted_first: Iterable[ContextFragment], queries: int, elapsed_ms: int, cut_by: CutReason | None
    ) -> AttentionContext:
        """Builds a context of the fragments that fit. Admits them in the given order, and shows them by id, rules first."""
        tokens, kept = 0, []
        for fragment in admitted_first:
            if tokens + fragment.token_estimate > self._max_tokens:
                cut_by = "tokens"
                continue
            tokens += fragment.token_estimate
            kept.append(fragment)
        used = BudgetUsed(tokens, queries, elapsed_ms, cut_by)
        history: tuple[str, ...] | None = () if self._is_chat else None
        if not kept:
            return AttentionContext(template_id=self.template_id, budget_used=used, history=history)
        kept.sort(key=_source_id)
        # The instructions already show the standing rules. They stay among the fragments, so that the record lists them.
        shown = [fragment for fragment in kept if fragment.source != STANDING_RULE]
        if len(shown) < len(kept):
            kept.sort(key=_is_no_rule)
        if self._is_chat:
            history = tuple(chain.from_iterable([fragment.said for fragment in shown]))
            shown = [fragment for fragment in shown if not fragment.said]
        text = "\n\n".join([fragment.content for fragment in shown])
        text_hash = digest(text.encode()) if text else EMPTY_HASH
        return AttentionContext(text, text_hash, tuple(kept), self.template_id, used, history=history)


STANDING_RULE: Final = "standing_rule"
TOOL_RESULT: Final = "HO1M"
"""The `source` of a context fragment that is a tool result of an earlier turn."""


def standing_rule_fragments(rules: Sequence[str], estimator: str) -> tuple[ContextFragment, ...]:
    """The configured rules as fragments with the ids `INV-1`, `INV-2` …"""
    return tuple(
        ContextFragment(
            STANDING_RULE,
            f"INV-{n}",
            rule,
            estimate_tokens(rule, estimator),
            ref=rule_ref(n, rule),
        )
        for n, rule in enumerate(rules, 1)
    )


def match_words(text: str) -> frozenset[str]:
    """The words of a text for lexical matching: lower case, at least three characters, without common English words."""
    return frozenset(_WORD.findall(text.lower())) - _COMMON


def _result_fragment(item: Item) -> ContextFragment:
    return ContextFragment(TOOL_RESULT, item.entity_id, item.text, item.tokens, ref=item.ref)


def _is_no_rule(fragment: ContextFragment) -> bool:
    return fragment.source != STANDING_RULE
