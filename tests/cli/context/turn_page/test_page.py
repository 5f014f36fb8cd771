"""`kitchener context explain --html`: the explanation of a turn as one file (docs/commands.md)."""

import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.cli.context.turn_page import sections
from kitchener.testing import ScriptedProvider
from tests.acceptance.context.test_tool_results import TOOLS, model
from tests.acceptance.stack import open_scripted
from tests.cli.conftest import Cli
from tests.cli.context.contexts import TALK, configure, intents, talk, turn
from tests.cli.context.turn_page.pages import Page, read_page
from tests.cli.shared.commands import environment, finish, start
from tests.replay.golden_roots import FOLDER, unpacked

SESSION = "SES-0000000a"
ARCHIVES = sorted(FOLDER.glob("*.tar.xz"))


def page_of(cli: Cli, turn_id: str, *more: str) -> Page:
    outcome = cli("context", "explain", turn_id, "--html", "--out", "page.html", *more)
    assert (outcome.code, outcome.err) == (0, "")
    return read_page(Path("page.html"))


def with_tools(*messages: str, **settings: Any) -> None:
    """Records a session in which `use NAME` calls a tool."""
    known: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", **settings}

    async def record() -> None:
        async with open_scripted(Path(".kitchener"), ScriptedProvider(model), tools=TOOLS, **known) as runtime:
            await runtime.supervisor().start_session(SESSION, subject_id="ada")
            for message in messages:
                await runtime.supervisor().handle_turn(message, session_id=SESSION)

    anyio.run(record)


class TestContents:
    def test_every_item_stands_there_with_its_verdict_and_text(self, cli: Cli, session: str) -> None:
        configure(context_budget="160", prompt_layout='"block"')
        cli("chat", "--session", session, stdin=b"and a room with a view?\n")
        page = page_of(cli, turn(session, 6))
        view = cli("context", "explain", turn(session, 6), "--json").json
        verdicts = {each["verdict"] for each in view["explanations"]}
        assert {"visible", "suppressed", "not_live"} <= verdicts
        for each in view["explanations"]:
            if each["verdict"] == "visible":
                assert each["entity_id"] in page.text
            elif not each["entity_id"].startswith("WO-"):
                assert each["text"] in page.text
        ended = [each for each in view["explanations"] if each["entity_id"].startswith("WO-")]
        assert f"{len(ended)} work orders that ended before" in page.text
        assert f"{view['tokens_used']:,} of 160 tokens" in page.text
        assert "user: By the way, I also need a hotel in Oslo for the weekend." in "\n".join(page.blocks)

    def test_the_bars_parts_add_up_to_what_was_used(self, cli: Cli, session: str) -> None:
        page = page_of(cli, turn(session, 5))
        view = cli("context", "explain", turn(session, 5), "--json").json
        legend = page.source.split('id="budget"')[1].split("</table>")[0]
        rows = [row.split("</td>")[0].rpartition(">")[2] for row in legend.split('<tr><th scope="row">')[1:]]
        assert "</svg> left</th>" in legend
        assert sum(map(int, rows[:-1])) == view["tokens_used"]
        assert int(rows[-1]) == 200 - view["tokens_used"]

    def test_the_requests_are_those_of_the_prompt_option_word_for_word(self, cli: Cli, session: str) -> None:
        page = page_of(cli, turn(session, 5))
        calls = cli("context", "explain", turn(session, 5), "--prompt", "--json").json["calls"]
        assert len(calls) == 2
        for call in calls:
            assert f"{call['request_hash']}, as recorded" in page.text
            assert (
                f"{call['estimated_tokens']:,} estimated; the provider counted {call['usage']['input_tokens']:,} in"
                in page.text
            )
            for message in call["messages"]:
                assert message["content"] in page.blocks
            for part in call["parts"]:
                assert f"{part['name']}: {part['tokens']:,} tokens" in page.text

    def test_the_head_tells_the_turn_its_reply_and_what_became_of_intents(self, cli: Cli, session: str) -> None:
        _, second = intents(cli, session)
        page = page_of(cli, turn(session, 4))
        shown = cli("session", "show", session, "--json").json["turns"][3]
        assert {TALK[3], shown["response"]} <= set(page.blocks)
        for words in (session, "ADMIN", "ada", "completed", "offline-rules-1 of offline", "2 model calls, 0 tool calls"):
            assert words in page.text
        assert f"{second['intent_id']} declared by HO2: “{second['objective']}”" in page.text
        assert f"superseded by {second['intent_id']}: switch" in page.text

    def test_what_changed_since_the_turn_before_is_what_diff_says(self, cli: Cli, session: str) -> None:
        page = page_of(cli, turn(session, 4))
        changes = cli("context", "diff", turn(session, 3), turn(session, 4), "--json").json
        assert changes["came_in"] != []
        assert changes["went_out"] != []
        for sign, each in [*[("+", c) for c in changes["came_in"]], *[("−", c) for c in changes["went_out"]]]:
            assert f"{sign} {each['entity_id']}" in page.text
            assert each["why"] in page.text
        assert all(note in page.text for note in changes["notes"])
        added = [line for block in page.blocks for line in block.split("\n") if line.startswith("+")]
        assert f"+{TALK[3]}" in added
        assert '<span class="added">+' in page.source
        assert '<span class="removed">-' in page.source
        assert not [line for line in added if line.startswith(("+<data-", "+</data-"))], "their digits always differ"

    def test_the_first_turn_of_a_session_has_none_to_compare(self, cli: Cli, session: str) -> None:
        assert "This is the first turn of its session." in page_of(cli, turn(session, 1)).text

    def test_tools_are_told_with_arguments_and_results_and_no_text_stands_twice(self, cli: Cli) -> None:
        with_tools("use door_code", "what a day")
        page = page_of(cli, "T-0000000a-000001")
        assert "Tools called (1)" in page.text
        assert "door_code for WO-" in page.text
        assert any("4711" in block and "north" in block for block in page.blocks)
        calls = cli("context", "explain", "T-0000000a-000001", "--prompt", "--json").json["calls"]
        repeated = [m["content"] for m in calls[-1]["messages"] if m in calls[-2]["messages"]]
        assert repeated
        assert [page.blocks.count(text) for text in repeated] == [1] * len(repeated)
        assert "the same text as request 2, part 1" in page.text
        assert "Tools called (0)" in page_of(cli, "T-0000000a-000002").text

    def test_learned_lines_and_recalled_turns_are_told(self, cli: Cli) -> None:
        configure(ho3_enabled="true", recall_scope='"subject"')
        with Path("kitchener.toml").open("a", encoding="utf-8") as file:
            file.write("[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n")
        talk(cli, "which python packages are installed on the system?", "and which version is anyio?")
        session = talk(cli, "which python packages are installed on the system?")
        page = page_of(cli, turn(session, 1))
        memory = page.text.split("From memory (")[1].split("Changes since")[0]
        assert "ART-" in memory
        assert "T-" in memory
        (line,) = {each["line"] for each in cli("memory", "biases", "--subject", "ada", "--json").json["biases"][:1]}
        assert line in page.blocks

    def test_a_long_text_is_folded_and_whole(self, cli: Cli) -> None:
        configure()
        long = "A long story. " + "word " * 2_000 + "The end."
        session = talk(cli, long)
        page = page_of(cli, turn(session, 1))
        assert long in page.blocks
        assert '<details class="text"><summary><span class="title">message</span>' in page.source
        assert f"({len(long):,} characters, 1 line)" in page.text

    def test_a_long_sessions_page_has_the_newest_rows_and_says_how_many_more(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert sections.MOST_ROWS == 500
        monkeypatch.setattr(sections, "MOST_ROWS", 20)
        configure(context_budget="60", intent_mode='"bridge"', admission='"newest_first"')
        session = talk(cli, *[f"message {n}" for n in range(30)])
        page = page_of(cli, turn(session, 30))
        left_out = page.text.split("Left out (")[1].split("Requests to models")[0]
        assert "older ones; kitchener context explain" in left_out
        assert f"{turn(session, 20)} is suppressed" in left_out
        assert f"{turn(session, 1)} is suppressed" not in left_out
        assert "not_live" not in left_out
        assert len(page.source) < 100_000


class TestOtherTurns:
    def test_without_the_authority_the_requests_say_what_was_shown(self, cli: Cli) -> None:
        session = talk(cli, "hello", "hello again")
        page = page_of(cli, turn(session, 2))
        assert "context_mode was off, so attention chose what the model saw" in page.text
        assert f"{turn(session, 1)} cannot be compared" in page.text
        assert "as recorded" in page.text

    def test_in_shadow_it_says_that_the_model_saw_something_else(self, cli: Cli) -> None:
        configure(context_mode='"shadow"')
        session = talk(cli, "hello", "and a hotel in Oslo?")
        assert "In shadow: this was decided beside the turn." in page_of(cli, turn(session, 2)).text

    def test_a_turn_that_was_answered_without_a_model_says_why(self, cli: Cli, session: str) -> None:
        cli("intent", "declare", "compare prices", "--session", session)
        cli("chat", "--session", session, stdin=b"and now?\n")
        page = page_of(cli, turn(session, 6))
        assert "completed with an apology: CONFLICT: 2 intents are live" in page.text
        assert "nothing was projected: it was answered without a model" in page.text
        assert "No model was asked." in page.text

    def test_what_was_erased_says_so_and_is_in_no_byte(self, cli: Cli) -> None:
        configure()
        with Path("kitchener.toml").open("a", encoding="utf-8") as file:
            file.write('[ledger]\nkeyring = "keys"\n')
        session = talk(cli, "my cat is called Mitzi", "what is she called?")
        assert any("Mitzi" in block for block in page_of(cli, turn(session, 2)).blocks)
        assert cli("subject", "erase", "ada", "--yes").code == 0
        page = page_of(cli, turn(session, 2))
        assert "Mitzi" not in page.source
        assert "(erased, or sealed without its key)" in page.blocks
        assert "its subject was erased" in page.text

    def test_a_page_tells_nothing_of_another_subject(self, cli: Cli, session: str) -> None:
        assert cli("chat", "--subject", "bo", stdin=b"the password is swordfish\n").code == 0
        assert "swordfish" not in page_of(cli, turn(session, 5)).source

    @pytest.mark.parametrize(
        "archive",
        [pytest.param(each, id=each.name, marks=[pytest.mark.soak] * (at % 2)) for at, each in enumerate(ARCHIVES)],
    )
    def test_the_turns_of_earlier_versions_have_pages(self, cli: Cli, tmp_path: Path, archive: Path) -> None:
        """`make test` makes pages of every other version's root, each of another session, and `make soak` of all roots."""
        root = unpacked(archive, tmp_path / "root")
        where = (
            ("--root", str(root), "--config", str(root / "kitchener.toml"))
            if (root / "kitchener.toml").exists()
            else ("--root", str(root))
        )
        sessions = cli("session", "list", "--json", *where).json
        assert sessions
        at = ARCHIVES.index(archive)  # the roots of all versions hold the same kinds of session
        for each in sessions[at % len(sessions) :: 10]:
            last = turn(each["session_id"], each["turns"])
            page = page_of(cli, last, *where)
            assert last in page.text
            prompts = cli("context", "explain", last, "--prompt", "--json", *where).json
            assert prompts["problem"] is None or prompts["problem"] in page.text


class TestFile:
    def test_it_is_named_after_the_turn_and_for_its_owner_alone(self, cli: Cli, session: str) -> None:
        outcome = cli("context", "explain", turn(session, 5), "--html")
        path = Path(f"{turn(session, 5)}.html")
        assert outcome.out == f"wrote {path}, {path.stat().st_size:,} bytes\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        read_page(path)

    def test_a_link_at_its_place_is_replaced_and_the_same_turn_gives_the_same_bytes(self, cli: Cli, session: str) -> None:
        """With --json it says where the page is."""
        Path("other").write_text("mine", encoding="utf-8")
        Path("page.html").symlink_to("other")
        page = page_of(cli, turn(session, 5))
        assert not Path("page.html").is_symlink()
        assert Path("other").read_text(encoding="utf-8") == "mine"
        told = cli("context", "explain", turn(session, 5), "--html", "-o", "page.html", "--json").json
        assert told == {
            "turn_id": turn(session, 5),
            "path": "page.html",
            "bytes": Path("page.html").stat().st_size,
            "problem": None,
        }
        assert read_page(Path("page.html")).source == page.source

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--out", "page.html"], "expected --html too"),
            (["--open"], "expected --html too"),
            (["--html", "--prompt"], "--html writes everything"),
            (["--html", "--entry", "INV-1"], "--html writes everything"),
            (["--html", "--out", ".kitchener/page.html"], "lies under the root"),
            (["--html", "--out", "nowhere/page.html"], "must be a file in a directory that exists"),
        ],
    )
    def test_what_cannot_be_is_refused_and_writes_nothing(
        self, cli: Cli, session: str, arguments: list[str], words: str
    ) -> None:
        outcome = cli("context", "explain", turn(session, 5), *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert words in outcome.err
        assert not list(Path().rglob("*.html"))

    def test_a_browser_opens_it_only_when_asked(self, cli: Cli, session: str, tmp_path: Path) -> None:
        browser = tmp_path / "browser"
        browser.write_text("#!/bin/sh\nprintf '%s\\n' \"$1\" >> opened\n", encoding="utf-8")
        browser.chmod(0o700)
        environ = {**environment(), "BROWSER": str(browser)}
        for more in ([], ["--open"]):
            done = finish(start("context", "explain", "last", "--html", *more, cwd=tmp_path, env=environ))
            assert (done.code, done.err) == (0, "")
            assert (tmp_path / "opened").exists() is bool(more)
        page = tmp_path / f"{turn(session, 5)}.html"
        assert (tmp_path / "opened").read_text(encoding="utf-8") == f"{page.as_uri()}\n"


class TestLast:
    def test_it_is_the_newest_turn_of_the_agent_class(self, cli: Cli, session: str) -> None:
        assert cli("context", "explain", "last", "--json").json["turn_id"] == turn(session, 5)
        assert cli("context", "explain", "last", "--prompt", "--json").json["turn_id"] == turn(session, 5)
        other = talk(cli, "hello")
        assert cli("context", "explain", "last", "--json").json["turn_id"] == turn(other, 1)

    def test_where_there_is_none_it_says_so(self, cli: Cli) -> None:
        outcome = cli("context", "explain", "last", "--html")
        assert (outcome.code, outcome.out) == (1, "")
        assert "last: no turn is on record" in outcome.err
