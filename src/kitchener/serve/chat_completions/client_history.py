"""Compares the history that a client claims with the record of a session, by hashes.

Clients of the chat completions API keep the conversation themselves and send all of it each time. If both agree, the session
continues; if the history was edited, another session begins. Explained in `docs/server.md`.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.serve.chat_completions.chat_request import CONTINUE, SaidPair, as_sent, joined_rounds

APPROVAL_WORDS: Final = ("approve", "deny")
_MOST_KEPT: Final = 131_072
"""Messages whose hashes are kept in memory, about 20 MB: enough for 4,096 sessions of 32 messages."""


class SpokenAnswer(NamedTuple):
    """A message that answers a waiting tool call."""

    is_approved: bool
    approval_id: str
    reason: str


def spoken_answer(message: str) -> SpokenAnswer | None:
    """The answer that a message is: `approve WO-…`, or `deny WO-… because`; None: it is a message for the agent."""
    word, _, rest = message.strip().partition(" ")
    approval_id, _, reason = rest.strip().partition(" ")
    if word.casefold() not in APPROVAL_WORDS or not approval_id.startswith("WO-"):
        return None
    return SpokenAnswer(word.casefold() == APPROVAL_WORDS[0], approval_id, reason.strip())


def digest_of(message: str, reply: str) -> bytes:
    """The hash of a message with its reply. White space around them does not count."""
    said, replied = message.strip().encode("utf-8", "surrogatepass"), reply.strip().encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d:%b%b" % (len(said), said, replied)).digest()


class ClaimedHistory(NamedTuple):
    """The history that a client claims, with the hashes for comparing it. It is made once for all sessions, because it may be
    long."""

    pairs: tuple[SaidPair, ...]
    """Its messages with their replies, oldest first, without answers about tool calls."""
    digests: tuple[bytes, ...]
    """Their hashes."""

    @classmethod
    def of(cls, claimed: Sequence[SaidPair]) -> "ClaimedHistory":
        """The history that a client claims."""
        own = _joined([each for each in claimed if spoken_answer(each.message) is None])
        shown = tuple(each._replace(reply=as_sent(each.reply)) for each in own)
        return cls(shown, tuple(digest_of(each.message, each.reply) for each in shown))


class KnownHistory(NamedTuple):
    """The recorded history of a session."""

    known: int
    """Its completed turns and imported messages when this was read."""
    messages: tuple[bytes, ...]
    """Hashes of the user's messages, oldest first, without turns that continued after a person's answer."""
    digests: tuple[bytes, ...]
    """Hashes of the same messages with their replies."""
    last: SaidPair | None
    """The newest of them; None: there is none."""
    shortened: Mapping[int, bytes] = {}
    """Hashes of messages with the beginning of their reply, which is all that a client read of it, by their number."""

    def differing(self, claimed: ClaimedHistory) -> dict[int, SaidPair] | None:
        """The replies that a client claims and that differ from the record, by the number of the message.

        A client may leave out the beginning of a long conversation, even between a message and its reply. Some of its messages
        without a reply may be on record, because the client stopped reading before the reply began.

        Returns:
            None: the messages differ; {}: nothing does
        """
        found, number = dict[int, SaidPair](), len(self.digests)
        for index in reversed(range(len(claimed.pairs))):
            each, at = claimed.pairs[index], number - 1
            if at >= 0 and claimed.digests[index] in (self.digests[at], self.shortened.get(at)):
                number = at
            elif at >= 0 and ((index == 0 and not each.message) or digest_of(each.message, "") == self.messages[at]):
                found[at], number = each, at
            elif not each.is_unanswered:
                return None
        return None if self.digests and number == len(self.digests) else found


_UNREAD: Final = KnownHistory(0, (), (), None)


class Histories:
    """The histories of the sessions that were used last.

    Args:
        most: messages that are kept; of the session that was used last, all
    """

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._kept: OrderedDict[str, KnownHistory] = OrderedDict()
        self._most, self._messages = most, 0

    async def continues(self, session: SessionManager, claimed: ClaimedHistory) -> bool:
        """Whether a client that claims this history continues a session.

        It may have stopped reading a reply, and then shows the beginning of it from then on. Of a message that it leaves out,
        it may still show the reply.
        """
        history = await self._of(session)
        differing = history.differing(claimed)
        if not differing:
            return differing is not None
        newest = len(history.digests) - 1
        said = {newest: history.last} if differing.keys() == {newest} else dict(enumerate(_joined(await read_pairs(session))))
        for number, shown in differing.items():
            known = said[number]
            if known is None or not known.reply.strip().startswith(shown.reply):
                return False
            if not shown.message and known.reply.strip() != shown.reply:
                return False
        shortened = {**history.shortened, **{number: digest_of(each.message, each.reply) for number, each in differing.items()}}
        self._keep(session.session_id, history._replace(shortened=shortened))
        return True

    async def _of(self, session: SessionManager) -> KnownHistory:
        """The history of a session: what is kept of it and its newest turns, or read from its ledger.

        A session whose turns are all in memory is not read at all, so its second message costs no more than a later one.
        """
        state, kept = session.state, self._kept.get(session.session_id, _UNREAD)
        count = state.completed_turns + state.imported
        new = count - kept.known
        # The newest turns in memory do not say which of them continued after an answer, and name files beside the message.
        is_partial = state.approvals is not None or state.has_parts
        if not 0 <= new <= (0 if is_partial else len(state.window)):
            kept = _with(_UNREAD._replace(shortened=kept.shortened), count, await read_pairs(session))
        elif new:
            kept = _with(kept, count, [SaidPair(each.user_message, each.response) for each in state.newest(new)])
        self._keep(session.session_id, kept)
        return kept

    def forget(self) -> None:
        """Drops everything, because a subject was erased and no text may stay in memory."""
        self._kept.clear()
        self._messages = 0

    def _keep(self, session_id: str, history: KnownHistory) -> None:
        self._messages += len(history.digests) - len(self._kept.get(session_id, _UNREAD).digests)
        self._kept[session_id] = history
        self._kept.move_to_end(session_id)
        while len(self._kept) > 1 and (self._messages > self._most or len(self._kept) > self._most):
            self._messages -= len(self._kept.popitem(last=False)[1].digests)


async def read_pairs(session: SessionManager, until: str | None = None) -> list[SaidPair]:
    """Reads the messages of a session with their replies, oldest first.

    What the agent wrote after outputs of the client's functions belongs to the reply to the message before them.

    Args:
        session: the session
        until: the last turn to read; the result then includes turns that continued after a person's answer, and is empty if
            this turn has not completed. None: all turns except those that continued after a person's answer
    """
    found = list[tuple[str, list[str]]]()
    rounds = dict[str, list[str]]()
    has_ended = False
    async for each in session.read_history():
        if has_ended:  # read to its end all the same, so that it is closed
            continue
        before = rounds.get(each.continues) if each.continues is not None else None
        if before is not None:
            before.append(each.response)
            rounds[each.turn_id] = before
        elif until is not None or not each.is_resumed:
            found.append((each.user_message, rounds.setdefault(each.turn_id, [each.response])))
        has_ended = each.turn_id == until
    if until is not None and not has_ended:
        return []
    return [SaidPair(said, texts[0] if len(texts) == 1 else joined_rounds(texts)) for said, texts in found]


def _with(history: KnownHistory, count: int, pairs: Sequence[SaidPair]) -> KnownHistory:
    """A history with further messages."""
    kept = len(history.digests) - (history.last is not None)
    joined = _joined(pairs if history.last is None else [history.last, *pairs])
    messages = (*history.messages[:kept], *(digest_of(each.message, "") for each in joined))
    digests = (*history.digests[:kept], *(digest_of(each.message, each.reply) for each in joined))
    return KnownHistory(count, messages, digests, joined[-1] if joined else None, history.shortened)


def _joined(pairs: Sequence[SaidPair]) -> list[SaidPair]:
    """The messages, with each continuation of a reply joined to that reply, as clients show it."""
    replies = list[tuple[SaidPair, list[str]]]()
    for each in pairs:
        if each.message == CONTINUE and replies:
            replies[-1][1].append(each.reply)  # joined once: a client may continue a reply thousands of times
        else:
            replies.append((each, [each.reply]))
    return [first._replace(reply="".join(parts)) for first, parts in replies]
