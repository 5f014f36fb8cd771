"""Adds the conversations of a file as sessions of one subject. Each is written in one commit, so it is added as a whole or not.

The id of a session is derived from its content, so a known conversation is not added again. No turn ran for it, so the entries
claim no model calls, work orders or prompts. Explained in `docs/sessions.md`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from kitchener.actors.admission.argument_checks import check_is_text, fits_entry
from kitchener.canonical import canonical_bytes
from kitchener.clock import Clock, SystemClock
from kitchener.config import DEFAULT_AGENT, RuntimeConfig
from kitchener.errors import InvalidMessage
from kitchener.ids import SessionId, check_caller, turn_id
from kitchener.ledger import LedgerClient, LedgerEntry, ReadableLedger
from kitchener.media.content_store import ContentStore
from kitchener.records import events
from kitchener.records.entries import (
    CommonPayload,
    ConversationImportedPayload,
    MessageImportedPayload,
    SessionStartPayload,
)
from kitchener.runtime.portable.conversation_file import ConversationFile, SpokenConversation, max_messages
from kitchener.runtime.root_layout import INDEX_KEYS, index_dir, ledger_ids, ledger_paths, open_reader, sealer_of, settings_of
from kitchener.runtime.sealed_root import record_sealing
from kitchener.runtime.setting_checks import check_is_configured
from kitchener.sealing import Sealer
from kitchener.times import iso_of

FORMAT: Final = "kitchener-conversation/1"
_ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    """Where a conversation of the file is now."""

    session_id: str
    external_id: str | None
    """The other program's name for it; None: the file has none."""
    messages: int
    was_there: bool
    """Whether it was already in the root, so that nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationsImport:
    """The result of an import of conversations."""

    subject_id: str
    agent_class: str
    is_dry_run: bool
    """Whether the file was only checked."""
    conversations: tuple[ImportedConversation, ...]
    """In the order of the file."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


async def import_conversations(
    file: str | Path,
    *,
    subject_id: str,
    agent_class: str = DEFAULT_AGENT,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
    on_step: Callable[[], object] = int,
) -> ConversationsImport:
    """Adds conversations of other programs as sessions, to a root that no runtime uses.

    Checks the whole file before it writes anything. Each conversation is written in one commit. After an interruption, call
    it again: conversations that were added are not added twice.

    Args:
        file: JSON lines, see `docs/sessions.md`
        subject_id: the subject of the conversations
        agent_class: the agent class that gets the sessions
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the embedded defaults
        root: overrides `plane_root`
        dry_run: only check the file, and look up which conversations are already in the root
        clock: the time of day; None: the system clock
        on_step: called after each conversation

    Raises:
        ConfigError: a line is wrong; names file, line and field. Or the agent class is not configured
        CallerError: `subject_id` cannot be the subject of a conversation
        SealingError: the subject is being erased, or a key cannot be made
        LedgerLocked: a process has the ledgers open
    """
    settings = await anyio.to_thread.run_sync(partial(settings_of, config, root))
    check_target(settings, subject_id, agent_class)
    sealer, now = sealer_of(settings), clock or SystemClock()
    found = ConversationsToAdd(Path(file), subject_id, agent_class, config=settings, sealer=sealer, now=iso_of(now.time_us()))
    with ExitStack() as stack:
        await found.open(stack)
        path = ledger_paths(settings, agent_class)["ho2m"]
        if dry_run and not await anyio.to_thread.run_sync(path.exists):
            return await found.look_up(None, on_step)
        if dry_run:
            async with open_reader(settings, agent_class, "ho2m", sealer=sealer) as reader:
                return await found.look_up(reader, on_step)
        opened = LedgerClient.open(
            path,
            ledger_id=ledger_ids(agent_class)["ho2m"],
            config=settings.ledger,
            index_dir=index_dir(settings),
            index_keys=INDEX_KEYS["ho2m"],
            clock=now,
            sealer=sealer,
        )
        async with opened as ho2m:
            await record_sealing(ho2m, sealer)
            return await found.add(ho2m, on_step)


def check_target(config: RuntimeConfig, subject_id: str, agent_class: str) -> None:
    """Raises ConfigError or CallerError unless this agent class can have sessions of this subject."""
    check_is_text("subject_id", subject_id)
    check_caller(subject_id, None)
    check_is_configured(config, agent_class)


class ConversationsToAdd:
    """The conversations of one file, for one subject of one agent class. Use `look_up` or `add` after `open`.

    Args:
        path: the file
        subject_id: the subject of the conversations
        agent_class: the agent class that gets the sessions
        config: the whole configuration, with absolute paths
        sealer: the sealer of the configuration; None: there is no keyring
        now: ISO time, UTC
    """

    def __init__(
        self, path: Path, subject_id: str, agent_class: str, *, config: RuntimeConfig, sealer: Sealer | None, now: str
    ) -> None:
        self._path, self._subject_id, self._agent_class = path, subject_id, agent_class
        self._config, self._sealer, self._now = config, sealer, now
        self._conversations: Iterator[SpokenConversation] = iter(())

    async def open(self, stack: ExitStack) -> None:
        """Opens and checks the file, which `stack` closes.

        Raises:
            ConfigError: a line is wrong
        """
        file = await anyio.to_thread.run_sync(ConversationFile, self._path, self._config, self._now)
        stack.enter_context(closing(file))
        await anyio.to_thread.run_sync(_read_all, file)
        self._conversations = iter(file)

    def take(self, conversation: SpokenConversation) -> None:
        """Adds a conversation that a program passes in, instead of the file's.

        Raises:
            InvalidMessage: a message is empty or does not fit into one entry, or there are too many messages
        """
        limits, ledger = self._config.limits, self._config.ledger
        for number, each in enumerate(conversation.messages, 1):
            size = len(each.text)
            if not each.text.strip() or size > limits.max_message_chars or not fits_entry(each.text, ledger):
                raise InvalidMessage(
                    f"message {number} of the conversation has {size} characters: expected 1 to {limits.max_message_chars},"
                    " with room in one ledger entry"
                )
        if len(conversation.messages) > (most := max_messages(ledger)):
            raise InvalidMessage(f"the conversation has {len(conversation.messages):,} messages: expected at most {most:,}")
        self._conversations = iter((conversation,))

    async def look_up(self, reader: ReadableLedger | None, on_step: Callable[[], object] = int) -> ConversationsImport:
        """The result that an import would have. Creates no key and writes nothing. With None, there is no ledger yet."""
        keyring = self._sealer.keyring if self._sealer is not None else None
        has_key = keyring is not None and await anyio.to_thread.run_sync(keyring.kid_of, self._subject_id) is not None
        found = list[ImportedConversation]()
        while (conversation := await anyio.to_thread.run_sync(next, self._conversations, None)) is not None:
            hashes = await anyio.to_thread.run_sync(partial(self._hashes, conversation, is_keyed=has_key))
            known = await self._known(reader, hashes) if reader is not None else None
            found.append(_result(conversation, known or _session_id(hashes[0]), was_there=known is not None))
            on_step()
        return self._all(found, is_dry_run=True)

    async def add(self, ho2m: LedgerClient, on_step: Callable[[], object] = int) -> ConversationsImport:
        """Adds the conversations that are not in the ledger, each in one commit."""
        is_sealing, found = self._sealer is not None and self._sealer.seals, list[ImportedConversation]()
        while (conversation := await anyio.to_thread.run_sync(next, self._conversations, None)) is not None:
            hashes = await anyio.to_thread.run_sync(partial(self._hashes, conversation, is_keyed=is_sealing))
            known = await self._known(ho2m, hashes)
            session_id = known or _session_id(hashes[0])
            if known is None:
                await ho2m.write_all(self._entries(conversation, session_id, hashes[0]))
                await ho2m.commit()
            found.append(_result(conversation, session_id, was_there=known is not None))
            on_step()
        return self._all(found, is_dry_run=False)

    def _all(self, found: list[ImportedConversation], *, is_dry_run: bool) -> ConversationsImport:
        return ConversationsImport(
            subject_id=self._subject_id, agent_class=self._agent_class, is_dry_run=is_dry_run, conversations=tuple(found)
        )

    def _hashes(self, conversation: SpokenConversation, *, is_keyed: bool) -> list[str]:
        """The hashes under which a conversation may be on record: the keyed one, if there is a key, and the plain one.

        New entries get the first. Without the key, nobody can test guesses by a keyed hash.
        """
        data = canonical_bytes([self._agent_class, self._subject_id, conversation.as_json()])
        plain = ContentStore(self._config.plane_root, None).hash_of(self._subject_id, data)
        if self._sealer is None or not is_keyed:
            return [plain]
        return [self._sealer.content_digest(self._subject_id, data), plain]

    async def _known(self, ho2m: ReadableLedger, hashes: list[str]) -> SessionId | None:
        for each in hashes:
            session_id = _session_id(each)
            if await ho2m.last(session_id=session_id):
                return session_id
        return None

    def _entries(self, conversation: SpokenConversation, session_id: SessionId, content_hash: str) -> list[LedgerEntry]:
        base: CommonPayload = {"v": events.VERSION, "session_id": session_id, "subject_id": self._subject_id}
        start: SessionStartPayload = {"agent_class": self._agent_class}
        if conversation.name is not None:
            start["external_id"] = conversation.name
        count = len(conversation.messages)
        told: ConversationImportedPayload = {"format": FORMAT, "content_hash": content_hash, "messages": count}
        if conversation.title is not None:
            told["title"] = conversation.title
        made = [
            LedgerEntry(events.SESSION_START, session_id, {**base, **start}),
            LedgerEntry(events.CONVERSATION_IMPORTED, session_id, {**base, **told}),
        ]
        for number, each in enumerate(conversation.messages, 1):
            message: MessageImportedPayload = {"turn_id": turn_id(session_id, number), "role": each.role, "text": each.text}
            if each.speaker is not None:
                message["speaker"] = each.speaker
            if each.said_at:
                message["said_at"] = each.said_at
            made.append(LedgerEntry(events.MESSAGE_IMPORTED, message["turn_id"], {**base, **message}))
        return made


def _read_all(file: ConversationFile) -> None:
    for _ in file:
        pass


def _session_id(content_hash: str) -> SessionId:
    return SessionId(f"SES-{content_hash.rpartition(':')[2][:_ID_DIGITS]}")


def _result(conversation: SpokenConversation, session_id: SessionId, *, was_there: bool) -> ImportedConversation:
    return ImportedConversation(
        session_id=session_id,
        external_id=conversation.name,
        messages=len(conversation.messages),
        was_there=was_there,
    )
