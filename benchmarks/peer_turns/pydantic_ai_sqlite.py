"""The peer of `peers.py` built on Pydantic AI: an agent whose conversations are loaded and saved by its `ConversationStore`.

Pydantic AI ships that store for memory only; for a database its documentation has an application write five methods. Here they
write to SQLite over one connection, with a write-ahead log and one sync a turn, and each message once. Over HTTP the model is
its `OpenAIChatModel`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
from measuring import CLASSIFIED, CLASSIFY, INSTRUCTIONS, KEY, REPLY, Classification, Setting, TakeTurn, run
from pydantic import TypeAdapter
from pydantic_ai import Agent, AgentRunResultEvent, NativeOutput, UsageLimits
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord, ConversationStore
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

_RECORD = TypeAdapter(ConversationRecord)
_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE records (id TEXT PRIMARY KEY, revision TEXT NOT NULL, record BLOB NOT NULL);
CREATE TABLE entries (id TEXT PRIMARY KEY, parent_id TEXT, message BLOB NOT NULL);
"""
_HISTORY = """
WITH RECURSIVE history(id, parent_id, message, depth) AS (
    SELECT id, parent_id, message, 0 FROM entries WHERE id = ?
    UNION ALL
    SELECT e.id, e.parent_id, e.message, depth + 1 FROM entries e JOIN history h ON e.id = h.parent_id
) SELECT id, parent_id, message FROM history ORDER BY depth DESC
"""


class SqliteStore(ConversationStore):
    """Conversations in SQLite."""

    def __init__(self, database: aiosqlite.Connection) -> None:
        self._database = database

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation."""
        rows = await self._database.execute_fetchall("SELECT record FROM records WHERE id = ?", (conversation_id,))
        return next((_RECORD.validate_json(record) for (record,) in rows), None)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Not used by a turn."""
        raise NotImplementedError

    async def write_record(
        self, record: ConversationRecord, *, new_entries: Sequence[ConversationEntry] = (), expected_revision: str | None
    ) -> None:
        """Writes the record and its new messages in one transaction, which one statement checks."""
        if not await self._database._execute(self._write, record, new_entries, expected_revision):
            raise ConversationConflict(record.conversation_id)

    def _write(self, record: ConversationRecord, entries: Sequence[ConversationEntry], expected: str | None) -> bool:
        row = (record.revision, _RECORD.dump_json(record), record.conversation_id)
        with self._database._conn as connection:
            if expected is None:
                written = connection.execute(
                    "INSERT INTO records (revision, record, id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row
                )
            else:
                written = connection.execute(
                    "UPDATE records SET revision = ?, record = ? WHERE id = ? AND revision = ?", (*row, expected)
                )
            if written.rowcount == 1:
                messages = [(each.id, each.parent_id, _MESSAGE.dump_json(each.message)) for each in entries]
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", messages)
        return written.rowcount == 1

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Not used by a turn."""
        raise NotImplementedError

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Not used by a turn."""
        raise NotImplementedError

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The messages of a conversation in one query."""
        rows = await self._database.execute_fetchall(_HISTORY, (head_id,))
        return [ConversationEntry(id=i, parent_id=p, message=_MESSAGE.validate_json(m)) for i, p, m in rows]


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[SqliteStore]:
    """Opens the store for the block."""
    async with aiosqlite.connect(path) as database:
        await database.executescript(_TABLES)
        yield SqliteStore(database)


def instant(answer: str) -> FunctionModel:
    """A model that gives one answer at once."""
    return FunctionModel(lambda _messages, _info: ModelResponse(parts=[TextPart(answer)]))


@asynccontextmanager
async def opened(setting: Setting) -> AsyncIterator[TakeTurn]:
    """Makes both agents, and a store for the conversations of the one that replies."""
    classifying: Model
    replying: Model
    if setting.url:
        classifying = replying = OpenAIChatModel("m", provider=OpenAIProvider(base_url=setting.url, api_key=KEY))
    else:
        classifying, replying = instant(CLASSIFIED.model_dump_json()), instant(REPLY)
    classifier = Agent(classifying, instructions=CLASSIFY, output_type=NativeOutput(Classification))
    agent = Agent(replying, instructions=INSTRUCTIONS)
    unlimited = UsageLimits(request_limit=None)
    async with open_store(setting.root / "conversations.sqlite") as store:

        async def take_turn(session_id: str, message: str) -> str:
            assert (await classifier.run(message)).output.speech_act == "question"
            conversation = await store.load(session_id) or Conversation(conversation_id=session_id)
            if not setting.streams:
                result = await agent.run(message, conversation=conversation, usage_limits=unlimited)
            else:
                async with agent.run_stream_events(message, conversation=conversation, usage_limits=unlimited) as events:
                    *_, last = [event async for event in events]
                assert isinstance(last, AgentRunResultEvent)
                result = last.result
            await store.save(result)
            return str(result.output)

        yield take_turn


if __name__ == "__main__":
    run(opened, __doc__)
