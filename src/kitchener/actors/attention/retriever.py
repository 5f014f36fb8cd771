"""Gathers material for a turn within budgets of tokens, reads and time, and lays it out as one text.

It fails open: a budget that runs out, or a reader that fails, leaves a smaller context and says what cut it. Where the
material comes from is a `ContextProvider`'s matter; which part of it the model may see is decided above. Explained in
`docs/attention.md`.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol

import anyio
import orjson
import structlog

from kitchener.actors.attention.templates import AttentionTemplate
from kitchener.actors.work.budget import estimate_tokens
from kitchener.cancellation import is_own_failure
from kitchener.canonical import digest
from kitchener.config import HO2Config
from kitchener.errors import origin_of
from kitchener.records.ref import Ref

logger = structlog.get_logger(__name__)

CutBy = Literal["tokens", "queries", "time", "error"]
EMPTY_HASH: Final = digest(b"")

_WORD = re.compile(r"\w{3,}")
_COMMON = frozenset(
    """about also and are but can could for from has have here how into its just like need not please than that the then
    there they them this want was were what when where which who will with would you your""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class ContextFragment:
    """One piece of gathered material."""

    source: str
    """Where it comes from: `HO2M`, `standing_rule` …"""
    source_id: str
    """Its id there: a turn id, a rule's number."""
    content: str
    """The text."""
    token_estimate: int
    """Its size."""
    relevance_score: float = 1.0
    """1 for what is shown whatever the message; else the share of the message's words found in it."""
    ref: Ref | None = None
    """The ledger entry it is taken from."""
    ref_json: orjson.Fragment | None = field(default=None, compare=False, repr=False)
    """The ref as it is written in every turn that shows the fragment; None: it is made when it is needed."""

    def as_mapping(self) -> dict[str, Any]:
        """Source, id and size as JSON types; the content stands in the text, once."""
        return {"source": self.source, "source_id": self.source_id, "token_estimate": self.token_estimate}


class BudgetUsed(NamedTuple):
    """What gathering used, and which bound cut it."""

    tokens: int = 0
    queries: int = 0
    elapsed_ms: int = 0
    cut_by: CutBy | None = None


class AttentionContext(NamedTuple):
    """Gathered material, laid out."""

    context_text: str = ""
    """The text for the model."""
    context_hash: str = EMPTY_HASH
    """`sha256:` of the text."""
    fragments: tuple[ContextFragment, ...] = ()
    """What it is made of."""
    template_id: str = ""
    """The template that set the bounds."""
    budget_used: BudgetUsed = BudgetUsed()
    """What gathering used."""
    biases: tuple[ContextFragment, ...] = ()
    """Learned lines, best first; their text stands beside the context's."""
    projection_ref: Ref | None = None
    """The projection that it is; None: it was gathered."""

    def as_assembled(self) -> dict[str, Any]:
        """The `assembled_context` of a work order."""
        assembled: dict[str, Any] = {
            "context_text": self.context_text,
            "context_hash": self.context_hash,
            "fragments": [fragment.as_mapping() for fragment in (*self.fragments, *self.biases)],
        }
        if self.biases:
            assembled["ho3_biases"] = [fragment.content for fragment in self.biases]
        return assembled


class ContextProvider(Protocol):
    """Where material comes from. One that never waits may say so with a true `never_waits`, and gets no time limit."""

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's newest turns, oldest first."""
        ...

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        """The session's turns that match the query, best first."""
        ...

    async def read_registry(self) -> Sequence[ContextFragment]:
        """Configured material that holds in every turn."""
        ...


_Gathered = tuple[list[Sequence[ContextFragment]], int, CutBy | None]
"""What the readers gave, in how many milliseconds, and which bound cut it."""

_source_id = attrgetter("source_id")


class AttentionRetriever:
    """Gathers within the tighter of the template's and the agent's bounds.

    Args:
        context_provider: where material comes from
        config: the agent's bounds
        template: the template that serves the agent
    """

    def __init__(self, context_provider: ContextProvider, config: HO2Config, template: AttentionTemplate) -> None:
        self._provider = context_provider
        self._never_waits = bool(getattr(context_provider, "never_waits", False))
        self._recent_turns, self._max_matches = config.recent_turns, config.attention_matches
        self.template_id = template.template_id
        self._max_tokens = min(config.attention_budget_tokens, template.budget.max_context_tokens)
        self._max_queries = min(config.attention_budget_queries, template.budget.max_queries)
        self._timeout_s = min(config.attention_timeout_ms, template.budget.timeout_ms) / 1_000

    async def horizontal_scan(self, session_id: str, query: str) -> AttentionContext:
        """The session's newest turns and those that match the query, oldest first."""
        recent_turns, max_matches = self._recent_turns, self._max_matches
        reads: list[Callable[[], Any]] = []
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
        return self._laid_out([*reversed(recent), *matches], len(lists), elapsed_ms, cut_by)

    async def priority_probe(self) -> AttentionContext:
        """What holds in every turn: the standing rules."""
        lists, elapsed_ms, cut_by = await self._gather([self._provider.read_registry])
        return self._laid_out(lists[0] if lists else (), len(lists), elapsed_ms, cut_by)

    def assemble_wo_context(
        self,
        horizontal: AttentionContext,
        priority: AttentionContext,
        user_message: str,
        classification: Mapping[str, Any],
    ) -> AttentionContext:
        """Both merged into one context: priority first, each source once, cut to the token budget.

        The message and its classification are not repeated in the text: they stand in the work order beside it.
        """
        if not priority.fragments and priority.budget_used.cut_by is None:
            return horizontal
        merged = {(f.source, f.source_id): f for f in (*priority.fragments, *reversed(horizontal.fragments))}
        first, second = priority.budget_used, horizontal.budget_used
        queries, elapsed_ms = first.queries + second.queries, first.elapsed_ms + second.elapsed_ms
        return self._laid_out(list(merged.values()), queries, elapsed_ms, first.cut_by or second.cut_by)

    def _gather(self, reads: Sequence[Callable[[], Any]]) -> Coroutine[Any, Any, _Gathered]:
        """The results of as many reads as the bounds allow; a failing reader ends it."""
        return self._read_all(reads, []) if self._never_waits else self._read_in_time(reads)

    async def _read_in_time(self, reads: Sequence[Callable[[], Any]]) -> _Gathered:
        started = anyio.current_time()
        lists: list[Sequence[ContextFragment]] = []
        cut_by: CutBy | None = "time"
        with anyio.CancelScope(deadline=started + self._timeout_s):
            _, _, cut_by = await self._read_all(reads, lists)
        return lists, int((anyio.current_time() - started) * 1_000), cut_by

    async def _read_all(self, reads: Sequence[Callable[[], Any]], lists: list[Sequence[ContextFragment]]) -> _Gathered:
        """Adds the results to the list as they come, so that what was found before the time ran out is kept."""
        for read in reads:
            if len(lists) >= self._max_queries:
                return lists, 0, "queries"
            try:
                lists.append(await read())
            except BaseException as error:  # a user's reader; a smaller context is better than no reply
                if not is_own_failure(error):
                    raise
                logger.warning("context reader failed", error=origin_of(error))
                return lists, 0, "error"
        return lists, 0, None

    def _laid_out(
        self, admitted_first: Iterable[ContextFragment], queries: int, elapsed_ms: int, cut_by: CutBy | None
    ) -> AttentionContext:
        """The fragments that fit, admitted in the order given and shown in the order of their ids, rules first."""
        tokens, kept = 0, []
        for fragment in admitted_first:
            if tokens + fragment.token_estimate > self._max_tokens:
                cut_by = "tokens"
                continue
            tokens += fragment.token_estimate
            kept.append(fragment)
        used = BudgetUsed(tokens, queries, elapsed_ms, cut_by)
        if not kept:
            return AttentionContext(template_id=self.template_id, budget_used=used)
        kept.sort(key=_source_id)
        # Standing rules are shown as instructions already; they count here, so that the record says they were in force.
        texts = [fragment.content for fragment in kept if fragment.source != STANDING_RULE]
        if len(texts) < len(kept):
            kept.sort(key=_is_no_rule)
        text = "\n\n".join(texts)
        return AttentionContext(text, digest(text.encode()), tuple(kept), self.template_id, used)


STANDING_RULE: Final = "standing_rule"


def standing_rule_fragments(rules: Sequence[str], estimator: str) -> tuple[ContextFragment, ...]:
    """The configured rules as fragments, numbered from 1."""
    return tuple(
        ContextFragment(
            STANDING_RULE,
            f"INV-{n}",
            rule,
            estimate_tokens(rule, estimator),
            ref=Ref("RULESET", f"INV-{n}", digest(rule.encode())),
        )
        for n, rule in enumerate(rules, 1)
    )


def words_of(text: str) -> frozenset[str]:
    """The words of a text that lexical matching looks at."""
    return frozenset(_WORD.findall(text.lower())) - _COMMON


def _is_no_rule(fragment: ContextFragment) -> bool:
    return fragment.source != STANDING_RULE
