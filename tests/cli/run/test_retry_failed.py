"""`kitchener run --retry-failed`: messages whose model call failed are sent again (docs/commands.md)."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from tests.cli.conftest import Cli
from tests.cli.shared.commands import finish, read_lines, start, write_messages
from tests.gateway.shared.fake_server import Answer, FakeServer, Hit, completion, error, fake_server, hang

SAID = (("a", "hello"), ("b", "good morning"), ("a", "thanks"), ("a", "bye"))
DOWN = error(401, "the account is closed")
"""An answer after which the gateway does not try again."""


@contextmanager
def endpoint(tmp_path: Path, *answers: Answer, then: Callable[[Hit], Answer] | None = None) -> Iterator[FakeServer]:
    """The settings of an agent whose model is a server that gives these answers, and then others: "yes" by default."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(*answers)) as server:
        server.respond = then or (lambda _: completion("yes"))
        provider = f'[router.providers.it]\nbase_url = "{server.url}"\nmodel = "m"\n'
        settings = f'[router]\ndefault_provider = "it"\n{provider}[agents.ADMIN]\nclassify = "off"\n'
        (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
        yield server


def down(_: Hit) -> Answer:
    return DOWN


def turns_of(tmp_path: Path, entry_type: str) -> list[Any]:
    lines = read_lines(tmp_path / ".kitchener" / "HO2" / "ADMIN" / "ho2m.jsonl")
    return [line["entry"]["payload"] for line in lines if line["entry"]["entry_type"] == entry_type]


def keys_of(tmp_path: Path) -> list[str]:
    return [payload["idempotency_key"] for payload in turns_of(tmp_path, "TURN_STARTED")]


def counts(summary: dict[str, Any]) -> tuple[int, ...]:
    return tuple(summary[key] for key in ("turns", "done_before", "retried", "failed", "failed_turns"))


def test_a_message_whose_model_call_failed_is_sent_again_after_the_others_of_its_conversation(cli: Cli, tmp_path: Path) -> None:
    path = write_messages(tmp_path / "in", *SAID)
    with endpoint(tmp_path, DOWN, completion("one"), completion("two"), completion("three")):
        assert cli("run", path, "-o", "first", "--concurrency", "1").code == 1
    first = read_lines(tmp_path / "first")
    assert [each["error"] and each["error"]["kind"] for each in first] == ["PROVIDER", None, None, None]
    with endpoint(tmp_path) as server:
        outcome = cli("run", path, "-o", "second", "--retry-failed", "--json")
        assert (outcome.code, counts(outcome.json)) == (0, (1, 3, 1, 0, 0))
        (hit,) = server.hits
    said = [each["content"] for each in hit.body["messages"] if each["role"] == "user"]
    assert [text for text in said if text in ("hello", "thanks", "bye")] == ["hello", "thanks", "bye", "hello"]
    again, *others = read_lines(tmp_path / "second")
    assert (again["response"], again["error"], again["ordinal"]) == ("yes", None, 1)
    assert again["session_id"] == first[0]["session_id"]
    assert again["turn_id"] != first[0]["turn_id"]
    assert others == first[1:]
    assert keys_of(tmp_path) == ["run:a:1", "run:a:2", "run:a:3", "run:b:1", "run:a:1/2"]


def test_the_result_of_a_message_that_was_sent_again_is_that_of_its_last_turn(cli: Cli, tmp_path: Path) -> None:
    """Also for a run without the option, and for one with it, which has nothing to do then."""
    path = write_messages(tmp_path / "in", *SAID)
    with endpoint(tmp_path, then=down):
        cli("run", path)
    with endpoint(tmp_path) as server:
        assert cli("run", path, "-o", "first", "--retry-failed").code == 0
        assert len(server.hits) == 4
        for options in ((), ("--retry-failed",)):
            outcome = cli("run", path, "-o", "second", *options)
            assert (outcome.code, outcome.out) == (0, "nothing left to do: all 4 turns were done before\n")
            assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()
        assert len(server.hits) == 4


def test_what_fails_again_is_sent_again_by_a_further_retry(cli: Cli, tmp_path: Path) -> None:
    path = write_messages(tmp_path / "in", ("a", "hello"))
    with endpoint(tmp_path, then=down):
        assert counts(cli("run", path, "--json").json) == (1, 0, 0, 1, 1)
        assert counts(cli("run", path, "--json").json) == (0, 1, 0, 1, 1)
        assert counts(cli("run", path, "--retry-failed", "--json").json) == (1, 0, 1, 1, 1)
    with endpoint(tmp_path):
        assert counts(cli("run", path, "--json").json) == (0, 1, 0, 1, 1)
        assert counts(cli("run", path, "--retry-failed", "--json").json) == (1, 0, 1, 0, 0)
    assert keys_of(tmp_path) == ["run:a:1", "run:a:1/2", "run:a:1/3"]


def test_the_summary_says_how_many_failed_and_how_to_send_them_again(cli: Cli, tmp_path: Path) -> None:
    """Regression: a run during an outage left apologies, and no later run of the file said what to do about them."""
    path = write_messages(tmp_path / "in", *SAID)
    with endpoint(tmp_path, DOWN, completion("one"), DOWN):
        first = cli("run", path, "--concurrency", "1")
        second = cli("run", path)
    told = "2 turns ended with an error, in this run or an earlier one; `--retry-failed` sends their messages again\n"
    assert first.out.endswith(f" a second), 2 failed\n{told}")
    assert second.out == f"no new turns, 4 done before, 2 failed\n{told}"
    assert second.err == first.err
    assert "conversation 'a', message 1: PROVIDER" in second.err


def test_a_retry_that_was_killed_is_continued_and_sends_nothing_twice(cli: Cli, tmp_path: Path) -> None:
    path = write_messages(tmp_path / "in", *SAID)
    with endpoint(tmp_path, then=down):
        assert cli("run", path).code == 1
    is_asked = threading.Event()

    def hangs(_: Hit) -> Answer:
        is_asked.set()
        return hang()

    with endpoint(tmp_path, completion("one"), then=hangs):
        process = start("run", "in", "--retry-failed", "--concurrency", "1", cwd=tmp_path)
        assert is_asked.wait(30)
        process.kill()
        assert finish(process).code == -signal.SIGKILL
    with endpoint(tmp_path) as server:
        outcome = cli("run", path, "-o", "out", "--retry-failed", "--json")
        assert (outcome.code, counts(outcome.json)) == (0, (3, 1, 3, 0, 0))
        assert len(server.hits) == 3
    assert [each["response"] for each in read_lines(tmp_path / "out")] == ["one", "yes", "yes", "yes"]
    first = {"run:a:1", "run:a:2", "run:a:3", "run:b:1"}
    assert set(keys_of(tmp_path)) == {*first, *(f"{key}/2" for key in first)}
    assert len(turns_of(tmp_path, "TURN_COMPLETED")) == 8


def test_a_message_with_a_file_is_compared_and_sent_again(cli: Cli, tmp_path: Path) -> None:
    path = write_messages(tmp_path / "in", ("a", "what does it say?"))
    (tmp_path / "note.txt").write_text("milk")
    with endpoint(tmp_path, then=down):
        assert counts(cli("run", path, "--attach", "note.txt", "--json").json) == (1, 0, 0, 1, 1)
    with endpoint(tmp_path):
        assert counts(cli("run", path, "--attach", "note.txt", "--retry-failed", "--json").json) == (1, 0, 1, 0, 0)
        assert counts(cli("run", path, "--attach", "note.txt", "--retry-failed", "--json").json) == (0, 1, 0, 0, 0)
        (tmp_path / "note.txt").write_text("eggs")
        other = cli("run", path, "--attach", "note.txt", "-o", "out", "--retry-failed", "--json")
    assert (other.code, counts(other.json)) == (1, (0, 0, 0, 1, 0))
    assert read_lines(tmp_path / "out")[0]["error"]["kind"] == "IdempotencyConflict"


def test_a_changed_message_is_not_sent_in_place_of_the_failed_one(cli: Cli, tmp_path: Path) -> None:
    with endpoint(tmp_path, then=down):
        cli("run", write_messages(tmp_path / "in", ("a", "hello")))
    with endpoint(tmp_path) as server:
        path = write_messages(tmp_path / "in", ("a", "good morning"))
        outcome = cli("run", path, "-o", "out", "--retry-failed", "--json")
        assert (outcome.code, counts(outcome.json)) == (1, (0, 0, 0, 1, 0))
        assert server.hits == []
    assert read_lines(tmp_path / "out")[0]["error"]["kind"] == "IdempotencyConflict"


def test_where_a_message_cannot_be_sent_again_later_ones_keep_their_results(cli: Cli, tmp_path: Path) -> None:
    with endpoint(tmp_path, DOWN, completion("one"), DOWN):
        cli("run", write_messages(tmp_path / "in", ("a", "hello"), ("a", "thanks"), ("a", "bye")))
    (session,) = cli("session", "list", "--json").json
    cli("session", "end", session["session_id"])
    with endpoint(tmp_path) as server:
        outcome = cli("run", "in", "-o", "out", "--retry-failed", "--json")
        assert server.hits == []
    assert (outcome.code, counts(outcome.json)) == (1, (0, 1, 0, 2, 0))
    ended, kept, skipped = read_lines(tmp_path / "out")
    assert (ended["error"]["kind"], kept["response"], skipped["error"]["kind"]) == ("SessionEnded", "one", "NOT_RUN")
