"""Measures what a running turn shows: is what a question needs in the context that a budget admits?

Plays conversations through a real runtime with a scripted model (context `enforce`, `recall_scope = "subject"`): each
conversation is one subject's history, told at the times of its sessions, and each question is a turn of a new session. The
share of a budget counts the questions of which ALL evidence is visible: on record in the turn's projection, and, where only a
passage of a message is wanted, word for word in the prompt. No network; the same data gives the same shares.
`conversations.py` says what data it reads, `assistant_chats.py` writes chats with long replies. The data is not part of this
project.

    python -m benchmarks.evidence --data locomo10.json
    python -m benchmarks.evidence --data chats.json --budgets 1000,2000 --sample 100
    python -m benchmarks.evidence --data locomo10.json --policies lexical,newest_first --json
    python -m benchmarks.evidence --data chats.json --embeddings static --weight 0.15
    python -m benchmarks.evidence --data locomo10.json --one-session --layout block

With `--embeddings` the running turn also ranks by vectors. With `--policies` the idealised figures stand beside them: the
ranking alone, which is given one message an item and knows speakers and dates; `newest_first` is the policy that asks nothing.
Times are CPU time of this process, since machines are shared. With `--json` the last line of stdout is one JSON object.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from benchmarks.shared.conversations import Conversation, Question, Said, read_conversations
from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.choices import PromptLayout
from kitchener.config import EmbeddingsConfig, LedgerConfig, RouterConfig
from kitchener.context import (
    ContextState,
    Item,
    ProjectionLists,
    Projector,
    Ruleset,
    estimator,
    evidence_item,
    make_event,
    read_chain,
    resolve_active,
)
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn
from kitchener.ids import SessionId
from kitchener.records.prompt import PromptRequest
from kitchener.records.ref import Ref
from kitchener.testing import FakeClock, ScriptedProvider

BUDGETS = (500, 1000, 2000, 4000)
SESSION, MOMENT = "SES-00000001", "2026-02-18T09:00:00.000000+00:00"
SUBJECT = "ada"
DAY_US = 86_400_000_000
GREETING = "Hello."
"""What a user says, and the reply, where the data has nobody say anything."""
CLASSIFIED = {"speech_act": "question", "ambiguity": "low", "labels": {}, "intent_relation": "continue", "confidence": 0.9}

Found = dict[int, bool]
"""Whether all evidence of a question is visible, by budget."""
Row = tuple[str, Found]
"""A question's category, and what was found."""


# ---- the running turn


class Model:
    """The scripted model: says the next reply of a conversation, or notes the prompt of a question and gives up the turn."""

    def __init__(self) -> None:
        self.reply = ""
        self.prompt = ""
        self.asking: anyio.CancelScope | None = None
        """The scope of the question's turn; None: a turn of the history runs."""

    def answer(self, request: PromptRequest) -> str | dict[str, object]:
        if request.wo_type == "classify":
            return CLASSIFIED
        if self.asking is not None:
            self.prompt = "\n".join(message.content for message in request.messages)
            self.asking.cancel()
        return self.reply


class Player:
    """Plays one conversation into a root, and asks questions about it.

    Args:
        root: an empty directory
        conversation: what is played
        embeddings: gives vectors
        is_one: whether everything is said, and asked, in one session
        layout: the `prompt_layout` of the questions' turns
    """

    def __init__(
        self,
        root: str,
        conversation: Conversation,
        embeddings: EmbeddingsConfig,
        *,
        is_one: bool = False,
        layout: PromptLayout = "chat",
    ) -> None:
        self._root, self._conversation, self._embeddings = root, conversation, embeddings
        self._is_one, self._layout = is_one, layout
        self._session_id: SessionId | None = None
        """The session in which everything is said; None: each has one of its own."""
        first = next(each for said in conversation.sessions for each in said)
        # The clock never goes back, so a later start would give everything that was said one date.
        self._model, self._clock = Model(), FakeClock(int(first.at.timestamp() * 1e6))
        self._refs: list[Ref] = []
        """The entry of each message, by its position."""

    def _open(self, budget: int) -> Any:
        agent = HO2Config(
            context_mode="enforce",
            recall_scope="subject",
            consolidation="manual",
            context_budget=budget,
            prompt_layout=self._layout,
            token_estimator="chars/4",
        )
        config = RuntimeConfig(
            plane_root=self._root,
            ledger=LedgerConfig(seal=False, durability="none", accept_clock_jump=True),
            router=RouterConfig(default_provider="scripted"),
            agents={"ADMIN": agent},
            embeddings=self._embeddings,
        )
        model = ScriptedProvider(self._model.answer, record=False)
        return open_runtime(config, providers={"scripted": model}, clock=self._clock)

    async def play(self) -> None:
        """Tells the whole history, one turn after the other."""
        async with self._open(BUDGETS[-1]) as runtime:
            supervisor, ledger = runtime.supervisor("ADMIN"), runtime.ledgers("ADMIN").ho2m
            for said in self._conversation.sessions:
                session_id = self._session_id
                for message, reply in exchanges(said):
                    first = message or reply
                    assert first is not None
                    self._clock.set(max(self._clock.time_us(), int(first.at.timestamp() * 1e6)))
                    if session_id is None:
                        session_id = await supervisor.start_session(subject_id=SUBJECT)
                        self._session_id = session_id if self._is_one else None
                    self._model.reply = reply.text if reply else GREETING
                    result = await supervisor.handle_turn(message.text if message else GREETING, session_id=session_id)
                    if result.error is not None:
                        raise SystemExit(f"turn {result.turn_id} failed: {result.error}")
                    written = [
                        e async for e in ledger.read(session_id=session_id, entry_type=ENDS) if e.entity_id == result.turn_id
                    ]
                    refs = {e.entry_type: e.ref for e in written}
                    self._refs += [refs[kind] for kind, each in zip(ENDS, (message, reply), strict=True) if each]

    async def ask(self, questions: Sequence[Question], budget: int) -> list[bool]:
        """Whether all evidence of each question is visible at a budget."""
        last = self._clock.time_us()
        async with self._open(budget) as runtime:
            supervisor, ledger = runtime.supervisor("ADMIN"), runtime.ledgers("ADMIN").context
            found, known = [], dict[Ref, ProjectionLists]()
            for question in questions:
                at = int(question.at.timestamp() * 1e6) if question.at else last + DAY_US
                self._clock.set(max(self._clock.time_us(), at))
                session_id = self._session_id or await supervisor.start_session(subject_id=SUBJECT)
                with anyio.CancelScope() as self._model.asking:
                    await supervisor.handle_turn(question.text, session_id=session_id)
                shown = {e.ref: e.payload async for e in ledger.read(session_id=session_id, entry_type="PROJECTION_COMPUTED")}
                lists = read_chain([*shown.values()][-1], known, shown.__getitem__)
                found.append(self._is_shown(question, {*lists.visible}))
        self._model.asking = None
        return found

    def _is_shown(self, question: Question, visible: set[Ref]) -> bool:
        return all(
            self._refs[each.position] in visible and words(each.passage) in words(self._model.prompt)
            for each in question.evidence
        )


ENDS = ("TURN_STARTED", "TURN_COMPLETED")
"""The entries with a turn's message and with its reply."""


def words(text: str) -> str:
    """A text without the marks that a prompt may put at the start of a line."""
    return " ".join(text.replace("\n> ", "\n").split())


def exchanges(said: Sequence[Said]) -> Iterator[tuple[Said | None, Said | None]]:
    """The turns of a session: a message with its reply, or one of them alone."""
    waiting: Said | None = None
    for each in said:
        if each.role == "user":
            if waiting is not None:
                yield waiting, None
            waiting = each
        else:
            yield waiting, each
            waiting = None
    if waiting is not None:
        yield waiting, None


def sampled(conversation: Conversation, share: float) -> list[Question]:
    """A share of the questions, spread evenly over them."""
    questions = conversation.questions
    return [each for n, each in enumerate(questions) if int((n + 1) * share) > int(n * share)]


async def measure_running(
    conversations: Sequence[Conversation],
    budgets: Sequence[int],
    share: float,
    embeddings: EmbeddingsConfig,
    *,
    is_one: bool,
    layout: PromptLayout = "chat",
) -> dict[str, Any]:
    """Shares of the running turn per group of questions and budget, and the CPU time of a question's turn."""
    rows: list[Row] = []
    spent = 0.0
    for conversation in conversations:
        questions = sampled(conversation, share)
        found: list[Found] = [{} for _ in questions]
        with tempfile.TemporaryDirectory() as root:
            player = Player(root, conversation, embeddings, is_one=is_one, layout=layout)
            await player.play()
            for budget in budgets:
                began = time.process_time()
                for each, is_shown in zip(found, await player.ask(questions, budget), strict=True):
                    each[budget] = is_shown
                spent += time.process_time() - began
        rows += [(question.category, each) for question, each in zip(questions, found, strict=True)]
    return {**shares(rows, budgets), "turn_ms": round(1e3 * spent / len(rows) / len(budgets), 2)}


# ---- the ranking alone


class Given(NamedTuple):
    """A ranking of which the order is known."""

    order: Sequence[int]
    admits_all: bool = False

    def rank(self, message: str, items: Sequence[Item]) -> Sequence[int]:
        """The order, whatever the message."""
        return self.order

    def grade(self, message: str, items: Sequence[Item]) -> Sequence[tuple[int, float]]:
        """Nothing: no chat messages are shown."""
        return ()


class Shown:
    """What a projection shows if each message is an item of its own, in an order that is given."""

    def __init__(self, said: Sequence[Said], budgets: Sequence[int]) -> None:
        rulesets = {budget: Ruleset(context_budget=budget, token_estimator="chars/4") for budget in budgets}
        self._projectors = {budget: Projector(each) for budget, each in rulesets.items()}
        estimate = estimator("chars/4")
        self._state = ContextState(estimate, SESSION)
        declared = make_event("INTENT_DECLARED", "INT-1", MOMENT, {"objective": "This conversation"}, Ref("HO2M", "E-0", ""))
        assert declared is not None
        self._state.apply(declared)
        self._items = [
            evidence_item(str(n), Ref("HO2M", f"E-{n:06d}", ""), MOMENT, each.text, estimate) for n, each in enumerate(said)
        ]

    def visible(self, question: str, order: Sequence[int], budget: int) -> set[int]:
        """The positions that are visible when messages are admitted in this order."""
        projector = self._projectors[budget]
        resolution = resolve_active(self._state, projector.ruleset)
        projection = projector.project(self._state, resolution, message=question, ranking=Given(order), recalled=self._items)
        return {int(each.item.entity_id) for each in projection.placed if each.form == "FULL"}


Rank = Callable[[str, int], Sequence[int]]
"""A question, and how many messages are likely to be shown, to the order in which they are admitted."""
Policy = Callable[[Conversation], Rank]


def newest_first(conversation: Conversation) -> Rank:
    """The policy that asks nothing."""
    order = range(sum(map(len, conversation.sessions)) - 1, -1, -1)
    return lambda question, wanted: order


def lexical(conversation: Conversation) -> Rank:
    """The policy that ranks by words; where there is room left, the newest come."""
    turns = [
        LexicalTurn(each.text, f"session {n}", each.speaker, each.at.isoformat()[:10])
        for n, session in enumerate(conversation.sessions)
        for each in session
    ]
    index = LexicalIndex(turns, postings=Ruleset().ranking_postings)

    def rank(question: str, wanted: int) -> Sequence[int]:
        found = index.rank(question, wanted=wanted).order
        return [*found, *sorted(set(range(len(turns))).difference(found), reverse=True)]

    return rank


POLICIES: dict[str, Policy] = {"newest_first": newest_first, "lexical": lexical}


def measure_ranking(
    policy: Policy, conversations: Sequence[Conversation], budgets: Sequence[int], share: float
) -> dict[str, Any]:
    """Shares per group of questions and budget if the ranking alone decides, and its times."""
    rows: list[Row] = []
    rank_ms: list[float] = []
    for conversation in conversations:
        rank, said = policy(conversation), [each for session in conversation.sessions for each in session]
        shown = Shown(said, budgets)
        tokens = sum(len(each.text) for each in said) / 4 / len(said)
        for question in sampled(conversation, share):
            found = {}
            for budget in budgets:
                began = time.thread_time()
                order = rank(question.text, int(budget / tokens))
                rank_ms.append((time.thread_time() - began) * 1e3)
                visible = shown.visible(question.text, order, budget)
                found[budget] = all(each.position in visible for each in question.evidence)
            rows.append((question.category, found))
    rank_ms.sort()
    times = {"median": round(rank_ms[len(rank_ms) // 2], 3), "p95": round(rank_ms[int(0.95 * len(rank_ms))], 3)}
    return {**shares(rows, budgets), "rank_ms": times}


# ---- the report


def shares(rows: Sequence[Row], budgets: Sequence[int]) -> dict[str, Any]:
    """Percent of the questions of each category of which all evidence is visible, by budget."""
    groups = {"overall": [found for _, found in rows]}
    for category, found in rows:
        groups.setdefault(category, []).append(found)
    return {
        "shares": {
            name: {str(budget): round(100 * sum(found[budget] for found in part) / len(part), 1) for budget in budgets}
            for name, part in groups.items()
        },
        "questions": {name: len(part) for name, part in groups.items()},
    }


def print_table(name: str, figures: dict[str, Any]) -> None:
    """One set of figures for people."""
    if "rank_ms" in figures:
        times = f"{figures['rank_ms']['median']:.2f} ms median, {figures['rank_ms']['p95']:.2f} ms p95 a ranking"
    else:
        times = f"{figures['turn_ms']:.1f} ms a question's turn"
    print(f"{name}: {times}")
    for group, part in figures["shares"].items():
        cells = "  ".join(f"@{budget}: {value:5.1f} %" for budget, value in part.items())
        print(f"  {group:<12} {figures['questions'][group]:>5} questions  {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the conversations, a JSON file")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="tokens, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="ask about so many questions; 0: all")
    parser.add_argument("--policies", default="", help=f"also the ranking alone: {', '.join(POLICIES)}, separated by commas")
    parser.add_argument("--embeddings", default="off", choices=("off", "hashing", "static"), help="what gives vectors")
    parser.add_argument("--weight", type=float, default=EmbeddingsConfig().weight, help="the weight of their scores")
    parser.add_argument("--one-session", action="store_true", help="say and ask everything in one session")
    parser.add_argument("--layout", choices=("chat", "block"), default="chat", help="prompt_layout (default chat)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    try:
        budgets = [int(each) for each in arguments.budgets.split(",")]
    except ValueError:
        parser.error(f"--budgets must be whole numbers separated by commas, not {arguments.budgets!r}")
    policies = [each for each in arguments.policies.split(",") if each]
    if unknown := sorted({*policies} - POLICIES.keys()):
        parser.error(f"--policies knows {', '.join(POLICIES)}, not {', '.join(unknown)}")
    try:
        conversations = list(read_conversations(arguments.data))
    except OSError as error:
        sys.exit(f"cannot read {str(arguments.data)!r}: {error.strerror}; give the path of the data set with --data")
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(f"{str(arguments.data)!r} is in no form that is known: {error!r}; see the head of conversations.py")
    count = sum(len(each.questions) for each in conversations)
    if not count:
        sys.exit(f"{str(arguments.data)!r} holds no question with marked evidence; give another file with --data")
    # The deadline is long, so that the figures do not depend on the machine's load.
    embeddings = EmbeddingsConfig(kind=arguments.embeddings, weight=arguments.weight, deadline_s=600.0)
    share = min(1.0, arguments.sample / count) if arguments.sample else 1.0
    running = partial(
        measure_running, conversations, budgets, share, embeddings, is_one=arguments.one_session, layout=arguments.layout
    )
    report = {"running": anyio.run(running)}
    report |= {each: measure_ranking(POLICIES[each], conversations, budgets, share) for each in policies}
    for name, figures in report.items():
        print_table(name, figures)
    if arguments.json:
        print(json.dumps({"budgets": budgets, **report}))


if __name__ == "__main__":
    main()
