"""Gathers context fragments for a turn within budgets of tokens, reads and time, and joins them into one text.

It fails open: if a budget runs out or a reader fails, the context is smaller and names the cause. A `ContextProvider` supplies
the fragments. The turn decides whether the model sees them. Explained in `docs/attention.md`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

import anyio

from kitchener.actors.attention.attention_context import (
    EMPTY_HASH,
    STANDING_RULE,
    TOOL_RESULT,
    AttentionContext,
    BudgetUsed,
    ContextFragment,
)
from kitchener.actors.attention.templates import AttentionTemplate, load_templates, resolve_template
from kitchener.cancellation import failed_alone
from kitchener.canonical import digest
from kitchener.config import HO2Config
from kitchener.context.fold.items import Item
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.entries import CutReason
from kitchener.records.outputs import Classification

logger = get_logger(__name__)

_source_id = attrgetter("source_id")
_WORD: Final = re.compile(r"\w{3,}")
_COMMON: Final = frozenset(
    """about also and are but can could for from has have here how into its just like need not please than that the then
    there they them this want was were what when where which who will with would you your""".split()  # noqa: SIM905
)


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
        self._recent_turns, self._max_matches = config.gathered_turns, config.attention_matches
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
                matches = [found._replace(said=()) for found in matches]
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
        classification: Classification,
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


def match_words(text: str) -> frozenset[str]:
    """The words of a text for lexical matching: lower case, at least three characters, without common English words."""
    return frozenset(_WORD.findall(text.lower())) - _COMMON


def _result_fragment(item: Item) -> ContextFragment:
    return ContextFragment(TOOL_RESULT, item.entity_id, item.text, item.tokens, ref=item.ref)


def _is_no_rule(fragment: ContextFragment) -> bool:
    return fragment.source != STANDING_RULE
