"""The web chat in headless Chromium, against a server over real ledgers (docs/server.md). `make doors` runs this.

Nothing of another host is loaded, and no complaint stands in the browser's console: `open_tab` checks both for every test.
One event loop: the server of `kitchener serve` runs on asyncio only.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kitchener import ClientOutput
from kitchener.clock import SystemClock
from kitchener.ids import memory_namespace
from kitchener.runtime import Runtime
from kitchener.times import iso_of
from tests.memory.shared.kit import learned, recur
from tests.serve.web_chat.browser import CONTRAST, DOORS, REFUSED, Tab, open_browser, open_tab
from tests.serve.web_chat.served_page import HOSTILE, MAP, PageServer, open_wire, page_server

pytestmark = pytest.mark.skipif(
    not DOORS, reason="PAGE_DOORS names no folder with Playwright; `make doors` makes one and runs these tests"
)

DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with page_server(tmp_path_factory.mktemp("page") / "root") as found:
        yield found


@pytest.fixture
def tab(browser: Any, server: PageServer) -> Iterator[Tab]:
    with open_tab(browser, server.url) as found:
        found.see("#welcome")
        yield found


async def teach(runtime: Runtime, subject_id: str, line: str) -> None:
    """Teaches the agent a line about a subject."""
    memory, namespace = runtime.memory(), memory_namespace("ADMIN", subject_id)
    sources = await recur(memory, namespace=namespace)
    at = iso_of(SystemClock().time_us())
    await memory.log_overlay(learned(sources, consolidation_event_ts=at, context_line=line), namespace=namespace)
    await memory.commit()


class TestConversation:
    def test_a_reply_streams_as_a_draft_and_stays_once_after_a_reload(self, tab: Tab, server: PageServer) -> None:
        tab.say("wait for it")
        tab.see(".provisional", "You said: wa")
        assert tab.find("#stop").is_visible()
        server.go_on()
        tab.see(".text", "You said: wait for it")
        tab.gone(".provisional")
        tab.gone("#stop")
        where = tab.page.url
        assert "#SES-" in where
        tab.see("#sessions a[aria-current]", "wait for it")
        tab.page.reload()
        tab.see(".text", "You said: wait for it", count=1)
        assert (tab.page.url, tab.find(".bubble").all_inner_texts()) == (where, ["wait for it"])

    def test_text_that_is_taken_back_is_shown_as_withdrawn(self, tab: Tab) -> None:
        tab.ask("withdraw", "You said: withdraw")
        tab.see(".withdrawn summary").click()
        assert tab.find(".withdrawn del").inner_text() == "This was wrong. "
        assert "This was wrong" not in tab.find(".reply > .text").inner_text()

    def test_escape_stops_a_reply_and_the_message_can_be_sent_again(self, browser: Any, tmp_path: Path) -> None:
        with page_server(tmp_path / "root") as server, open_tab(browser, server.url) as tab:
            tab.say("wait")
            tab.see(".provisional")
            tab.page.keyboard.press("Escape")
            tab.see(".badge", "Stopped. Nothing of this reply was kept.")
            tab.gone("#stop")
            assert tab.find(".provisional").count() == 0
            server.go_on()
            tab.see("text=Try again").click()
            tab.see(".text", "You said: wait")
            tab.page.reload()
            tab.see(".text", "You said: wait", count=1)
            tab.see(".badge", "Stopped", count=1)

    def test_tools_are_told_while_they_run_and_what_they_gave(self, tab: Tab) -> None:
        tab.ask("copy", "It is done")
        tab.see(".steps li.done", "Used copy_files")
        tab.find(".steps summary").click()
        assert HOSTILE in tab.find(".steps figure").last.inner_text()

    def test_a_tool_is_told_to_its_end_although_the_reply_comes_first(self, tab: Tab) -> None:
        """The message's own stream and the session's events are two connections, and either may be the faster one."""
        shown = tab.page.evaluate(
            """async () => {
              const { TurnView } = await import("/page/turn.js");
              const call = { wo_id: "WO-1", call: 1, tool_id: "copy_files", arguments: {} };
              const view = new TurnView({ message: "copy" });
              view.update({ name: "tool_started", data: call });
              view.complete({ response: "It is done" }, { isLive: false });
              view.update({ name: "tool_progress", data: { ...call, value: 1, total: 3 } });
              view.update({ name: "tool_ran", data: { ...call, result: "copied", error: null } });
              view.update({ name: "text", data: { text: "late" } });
              const line = view.steps.querySelector("li");
              return [line.className, line.querySelector("progress").hidden, view.text.textContent];
            }"""
        )
        assert shown == ["done", True, "It is done"]

    def test_another_tab_sees_what_happens(self, tab: Tab, server: PageServer) -> None:
        tab.ask("first", "You said: first")
        other = Tab(tab.page.context.new_page())
        other.page.goto(tab.page.url)
        other.see(".text", "You said: first")
        tab.ask("second", "You said: second")
        other.see(".text", "You said: second", count=1)
        other.ask("third", "You said: third")
        tab.see(".text", "You said: third", count=1)
        tab.page.click("#new")
        tab.see("#welcome")
        tab.page.go_back()
        tab.see(".text", "You said: third", count=1)

    def test_a_tab_that_nobody_looks_at_takes_no_connection(self, tab: Tab, server: PageServer) -> None:
        def turn(is_hidden: str) -> None:
            tab.run(
                f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, configurable: true}});"
                "dispatchEvent(new Event('visibilitychange'))"
            )

        def follows(request: Any) -> bool:
            return "/events?" in request.url

        tab.ask("first", "You said: first")
        with tab.page.expect_event("requestfailed", follows):
            turn("true")
        session = server.call(_say, server.runtime, tab.page.url.partition("#")[2], "from elsewhere")
        assert session == "You said: from elsewhere"
        assert "from elsewhere" not in tab.find("main").inner_text()
        turn("false")
        tab.see(".text", "You said: from elsewhere", count=1)

    def test_code_is_copied(self, tab: Tab) -> None:
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        tab.ask("markdown", "Two ways to brew")
        tab.find("figure.code button").first.click()
        tab.see("figure.code button", "Copied")
        assert "def steep" in tab.run("navigator.clipboard.readText()")
        for element in ("h4", "strong", "em", "ol > li", "ol ul > li", "blockquote", "table td", "pre code"):
            tab.see(f".text {element}")


class TestApproval:
    def test_a_call_is_approved_with_other_arguments(self, tab: Tab) -> None:
        tab.say("a letter please")
        card = tab.see(".approval", "May I use send_letter?")
        assert "Dear Ada" in card.locator(".arguments").inner_text()
        card.locator("text=Change the arguments").click()
        card.locator("textarea").fill("{")
        card.locator("text=Approve").click()
        tab.see(".approval .problem", "not valid JSON")
        card.locator("textarea").fill('{"to": "bob"}')
        card.locator("text=Approve").click()
        tab.see(".text", "It is done: sent to bob")
        tab.see(".approval.approved .badge", "Approved, by local")
        tab.page.reload()
        tab.see(".text", "It is done: sent to bob", count=1)
        assert tab.find(".approval button").count() == 0
        assert tab.find(".bubble").all_inner_texts() == ["a letter please"]

    def test_a_call_is_denied_with_a_reason(self, tab: Tab) -> None:
        tab.say("a letter please")
        card = tab.see(".approval")
        card.locator("input[autocomplete]").fill("not today")
        card.locator("text=Deny").click()
        tab.see(".text", "not today")
        tab.see(".approval.denied .badge", "“not today”")

    def test_a_tool_is_approved_for_the_conversation(self, tab: Tab) -> None:
        tab.say("a letter please")
        tab.see(".approval input[type=checkbox]").check()
        tab.find(".approval >> text=Approve").click()
        tab.see(".text", "sent to ada")
        tab.see(".approval .badge", "for this conversation")
        tab.ask("another letter", "sent to ada")
        assert tab.find(".approval").count() == 1


class TestFunctionsOfAClient:
    """A program talks in a conversation that the page shows (docs/server.md#functions-of-the-client)."""

    def test_a_reply_without_text_says_what_it_asked_of_the_client_also_after_a_reload(
        self, tab: Tab, server: PageServer
    ) -> None:
        """Regression: the page showed an empty reply, and offered to approve the call."""
        tab.ask("hello", "You said: hello")
        session_id = tab.page.url.partition("#")[2]
        (call_id,) = server.call(_ask_map, server.runtime, session_id)
        for reloaded in (False, True):
            if reloaded:
                tab.page.reload()
            turn = tab.see(".turn", "show it on the map")
            tab.see(".text", "Asked the client to run show_on_map.", count=1)
            card = tab.see(".approval.client", "The client runs show_on_map")
            assert f"Graz {HOSTILE}" in card.locator(".arguments").inner_text()
            assert "Waits for the client until" in card.locator(".badge").inner_text()
            assert card.locator("button, input, textarea").count() == 0
            assert "Copy" not in turn.inner_text()
        server.call(_give, server.runtime, {call_id: ClientOutput("shown")})
        tab.see(".text", "It is done: ")
        assert card.locator(".badge").inner_text() == "The client gave the output"
        assert tab.find(".bubble").all_inner_texts() == ["hello", "show it on the map"]
        tab.find("text=Why this reply?").last.click()
        assert "Reply Asked the client to run show_on_map." in tab.see("#panel section", "Shown to the model").inner_text()

    def test_a_function_that_failed_says_why(self, tab: Tab, server: PageServer) -> None:
        tab.ask("hello", "You said: hello")
        (call_id,) = server.call(_ask_map, server.runtime, tab.page.url.partition("#")[2])
        tab.see(".approval.client")
        server.call(_give, server.runtime, {call_id: ClientOutput(error=f"no map {HOSTILE}")})
        tab.see(".approval.client.failed .badge", f"Failed at the client: no map {HOSTILE}")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_its_texts_have_enough_contrast_and_fit_a_phone(self, browser: Any, server: PageServer, scheme: str) -> None:
        with open_tab(browser, server.url, color_scheme=scheme, viewport={"width": 360, "height": 700}) as tab:
            tab.ask("hello", "You said: hello")
            session_id = tab.page.url.partition("#")[2]
            for output in (ClientOutput("shown"), ClientOutput(error="no map" * 40), None):
                (call_id,) = server.call(_ask_map, server.runtime, session_id)
                if output is not None:
                    server.call(_give, server.runtime, {call_id: output})
            tab.see(".approval.client", count=3)
            tab.see(".approval.client.resolved", count=2)
            assert tab.run(CONTRAST) == []
            assert tab.is_narrow()


class TestWhatIsKnown:
    def test_a_reply_says_what_the_model_was_shown_and_what_changed(self, tab: Tab) -> None:
        tab.ask("I like tea", "You said: I like tea")
        tab.ask("and coffee", "You said: and coffee")
        tab.ask("what do I like?", "You said: what do I like?")
        tab.find("text=Why this reply?").last.click()
        shown = tab.see("#panel section", "Shown to the model")
        assert "Message I like tea" in shown.inner_text()
        assert "Reply You said: and coffee" in shown.inner_text()
        changes = tab.see("#panel section", "Changed since the reply before").inner_text()
        assert "+ Message and coffee" in changes
        assert "I like tea" not in changes
        tab.see("#panel section", "scripted-1 of scripted")
        tab.page.keyboard.press("Escape")
        tab.gone("#panel")
        assert tab.run("document.activeElement.textContent") == "Why this reply?"

    def test_a_reply_says_what_it_was_shown_of_another_conversation_and_leads_there(self, browser: Any, tmp_path: Path) -> None:
        """Regression: of such a turn, the page showed an id and no word."""
        with page_server(tmp_path / "root") as server, open_tab(browser, server.url) as tab:
            tab.ask("my sister drinks rooibos tea", "You said: my sister")
            first = tab.page.url
            tab.page.click("#new")
            tab.ask("which tea does my sister drink?", "You said: which tea")
            tab.find("text=Why this reply?").last.click()
            shown = tab.see("#panel section", "Shown to the model")
            shown.locator("li", has_text="Message my sister drinks rooibos tea").locator("text=in another conversation").click()
            tab.gone("#panel")
            tab.see(".bubble", "my sister drinks rooibos tea", count=1)
            assert tab.page.url == first

    def test_without_the_context_authority_a_reply_names_the_turns_that_were_shown(self, browser: Any, tmp_path: Path) -> None:
        with page_server(tmp_path / "root", context_mode="off") as server, open_tab(browser, server.url) as tab:
            tab.ask("I like tea", "You said: I like tea")
            tab.ask("and coffee", "You said: and coffee")
            tab.find("text=Why this reply?").last.click()
            assert "Earlier turn I like tea" in tab.see("#panel section", "Shown to the model (1)").inner_text()

    def test_what_was_learned_is_forgotten_and_what_is_counted_counts_no_more(self, browser: Any, tmp_path: Path) -> None:
        with page_server(tmp_path / "root") as server, open_tab(browser, server.url) as tab:
            server.call(teach, server.runtime, "local", "Drinks tea.")
            tab.see("#memory").click()
            line = tab.see("#panel li", "Drinks tea.")
            line.locator("text=Forget").click()
            line.locator("text=Keep").click()
            line.locator("text=Forget").click()
            line.locator("text=Forget and never learn it again").click()
            tab.see("#panel section", "Learned (0)")
            tab.see("#panel summary", "No longer in use (1)").click()
            tab.see("#panel details li", "forgotten, from tool:read_file")
            tab.see("#panel li", "never learned from again")
            counted = tab.find("#panel section").last.locator("li", has_text="tool:read_file")
            counted.locator("text=Do not count").click()
            counted.locator("text=Stop counting").last.click()
            tab.see("#panel li", "does not count any more")
            (found,) = server.call(_memory_states, server.runtime)
            assert found == ("Drinks tea.", False)

    def test_everything_is_erased_after_the_subject_is_typed(self, browser: Any, tmp_path: Path) -> None:
        with page_server(tmp_path / "root") as server, open_tab(browser, server.url) as tab:
            tab.ask("my secret", "You said: my secret")
            tab.see("#memory").click()
            tab.see("#panel summary", "Erase everything").click()
            tab.find("#panel >> text=Erase everything for good").click()
            tab.see("#panel .problem", "Type “local” to confirm.")
            tab.page.fill("#erase-subject", "local")
            tab.find("#panel >> text=Erase everything for good").click()
            tab.see("#notice", "Everything about this subject was erased.")
            tab.see("#sessions", "None yet.")
            assert "my secret" not in tab.find("body").inner_text()

    def test_goals_are_shown_and_closed(self, tab: Tab) -> None:
        tab.ask("Find a hotel in Vienna", "You said: Find a hotel")
        tab.see("#goals").click()
        goal = tab.see("#panel li", "hotel in Vienna")
        goal.locator("text=Done").click()
        tab.see("#panel li", "Take up again")


async def _say(runtime: Runtime, session_id: str, message: str) -> str:
    return (await runtime.supervisor().handle_turn(message, session_id=session_id)).response


async def _ask_map(runtime: Runtime, session_id: str) -> list[str]:
    """A message of a program with a function of its own; the ids of the calls that the reply left to it."""
    found = await runtime.supervisor().handle_turn("show it on the map", session_id=session_id, client_tools=[MAP])
    return [each.call_id for each in found.client_calls]


async def _give(runtime: Runtime, outputs: Mapping[str, ClientOutput]) -> None:
    await runtime.supervisor().answer_client_calls(outputs)


async def _memory_states(runtime: Runtime) -> list[tuple[str | None, bool]]:
    found = await runtime.memory().read_overlays(active_only=False, namespace=memory_namespace("ADMIN", "local"))
    return [(each.line, each.enabled) for each in found]


class TestHostileText:
    def test_nothing_that_is_said_becomes_markup(self, browser: Any, tmp_path: Path) -> None:
        with page_server(tmp_path / "root") as server, open_tab(browser, server.url) as tab:
            line = 'Likes 1<2 &lt;b&gt; "x".'  # one with a tag would be refused
            server.call(teach, server.runtime, "local", line)
            tab.ask(HOSTILE, f"You said: {HOSTILE}")
            hostile = tab.ask("hostile", HOSTILE)
            assert [each.get_attribute("href") for each in hostile.locator("a").all()] == ["https://evil.example/x.png"]
            assert "right\ufffdleft" in hostile.inner_text()
            tab.say(f"letter {HOSTILE}")
            tab.see(".approval", HOSTILE)
            tab.see("#sessions a", HOSTILE[:30])
            tab.see("#memory").click()
            tab.see("#panel li", line)
            tab.page.keyboard.press("Escape")
            tab.find("text=Why this reply?").nth(1).click()
            tab.see("#panel li", HOSTILE[:30])
            assert tab.run("document.querySelectorAll('img, body script, iframe, object, [onerror]').length") == 0
            assert "owned" not in tab.page.title().replace(HOSTILE[:50], "")
            assert tab.run(
                "[...document.querySelectorAll('a')].every((each) => /^(https?:|mailto:|#)/.test(each.getAttribute('href')))"
            )

    def test_a_long_run_of_signs_is_drawn_as_it_is(self, tab: Tab) -> None:
        turn = tab.ask("brackets", "end")
        assert len(turn.locator(".reply > .text").inner_text()) > 80_000


class TestAppearance:
    def test_it_follows_the_scheme_of_the_reader_and_can_be_switched(self, browser: Any, server: PageServer) -> None:
        with open_tab(browser, server.url, color_scheme="dark") as tab:
            assert tab.run(BACKGROUND) == DARK
            tab.page.emulate_media(color_scheme="light")
            assert tab.run(BACKGROUND) == LIGHT
            tab.page.click("text=Theme: automatic")
            tab.page.click("text=Theme: light")
            assert tab.run(BACKGROUND) == DARK
            tab.page.reload()
            tab.see("#welcome")
            assert (tab.run(BACKGROUND), tab.find("#theme").inner_text()) == (DARK, "Theme: dark")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_texts_have_enough_contrast(self, browser: Any, server: PageServer, scheme: str) -> None:
        with open_tab(browser, server.url, color_scheme=scheme) as tab:
            tab.see("#welcome")
            assert tab.run(CONTRAST) == []
            tab.ask("markdown", "Two ways")
            tab.ask("copy", "It is done")
            tab.ask("withdraw", "You said")
            tab.say("letter")
            tab.see(".approval")
            assert tab.run(CONTRAST) == []
            tab.find(".approval >> text=Deny").click()
            tab.see(".approval.denied")
            assert tab.run(CONTRAST) == []
            tab.find("text=Why this reply?").last.click()
            tab.see("#panel section", "Models asked")
            assert tab.run(CONTRAST) == []

    def test_a_phone_has_nothing_beside_the_screen(self, browser: Any, server: PageServer) -> None:
        with open_tab(browser, server.url, viewport={"width": 360, "height": 700}, has_touch=True) as tab:
            tab.see("#welcome")
            assert tab.is_narrow()
            tab.ask("markdown", "Two ways to brew")
            tab.ask(f"{'long' * 60}", "You said")
            tab.say("letter")
            tab.see(".approval")
            tab.find("text=Change the arguments").click()
            assert tab.is_narrow()
            tab.find(".approval >> text=Deny").click()
            tab.find("text=Why this reply?").last.click()
            tab.see("#panel section", "Models asked")
            assert tab.is_narrow()
            tab.page.click("#close-panel")
            assert not tab.find("#new").is_visible()
            tab.page.click("#menu")
            tab.see("#new")
            assert tab.is_narrow()
            tab.page.keyboard.press("Escape")
            tab.gone("#new")
            tab.page.click("#menu")
            tab.page.click("#new")
            tab.see("#welcome")

    def test_it_keeps_still_for_who_wants_that(self, browser: Any, server: PageServer) -> None:
        moving = "document.getAnimations().length"
        for motion, least in (("no-preference", 1), ("reduce", 0)):
            with open_tab(browser, server.url, reduced_motion=motion) as tab:
                server.call(server.model.hold)
                tab.say("wait")
                tab.see(".state .dots")
                assert (tab.run(moving) > 0) == (least > 0)
                server.go_on()
                tab.see(".text", "You said: wait")


def test_everything_can_be_done_by_keyboard(tab: Tab) -> None:
    keyboard = tab.page.keyboard
    visible = "document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== 'none'"

    def walk_to(words: str) -> None:
        for _ in range(40):
            keyboard.press("Tab")
            assert tab.run(visible), tab.run("document.activeElement.outerHTML.slice(0, 80)")
            if tab.run("document.activeElement === document.body"):
                continue
            if words in tab.run(
                "`${document.activeElement.textContent} ${document.activeElement.ariaLabel} ${document.activeElement.id}`"
            ):
                return
        raise AssertionError(f"no way to {words!r}")

    walk_to("Skip to the message box")
    keyboard.press("Enter")
    assert tab.run("document.activeElement.id") == "message"
    keyboard.type("line one")
    keyboard.press("Shift+Enter")
    keyboard.type("letter")
    keyboard.press("Enter")
    tab.see(".bubble", "line one\nletter")
    tab.see(".approval")
    tab.page.focus("#title >> xpath=.. >> button#goals")
    walk_to("Change the arguments")
    walk_to("reason-")
    keyboard.type("by keyboard")
    walk_to("Approve")
    keyboard.press("Enter")
    tab.see(".text", "sent to ada")
    tab.page.focus("#goals")
    walk_to("Why this reply?")
    keyboard.press("Enter")
    tab.see("#panel section", "Models asked")
    keyboard.press("Escape")
    assert tab.run("document.activeElement.textContent") == "Why this reply?"
    assert tab.find("#announcer").inner_text() != ""


KEYS: Mapping[str, str] = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789", "desk": "key-of-desk-0123456789"}


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """A server that wants keys: of two subjects, and one that acts for others."""
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)
    clients: dict[str, Any] = {name: {"key": f"env:{name.upper()}_KEY", "subject": name} for name in ("ada", "bob")}
    clients["bob"]["rights"] = ("read",)
    clients["desk"] = {"key": "env:DESK_KEY", "rights": ("chat", "read", "act_for")}
    with page_server(tmp_path / "root", serve={"clients": clients}) as found:
        yield found


class TestKeys:
    def sign_in(self, tab: Tab, name: str) -> None:
        tab.see("#sign-in")
        tab.page.fill("#key", KEYS[name])
        tab.page.keyboard.press("Enter")

    def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(self, browser: Any, locked: PageServer) -> None:
        with open_tab(browser, locked.url, expected=REFUSED) as tab:
            tab.see("#sign-in")
            tab.page.keyboard.press("Escape")
            tab.page.fill("#key", "a key of nobody")
            tab.page.keyboard.press("Enter")
            tab.see("#key-problem", "no spaces")
            tab.page.fill("#key", "a-key-of-nobody-0123")
            tab.page.keyboard.press("Enter")
            tab.see("#key-problem", "does not know this key")
            self.sign_in(tab, "ada")
            tab.see("#who", "Signed in as ada")
            tab.ask("hello", "You said: hello")
            tab.page.reload()
            tab.see(".text", "You said: hello")
            held = "JSON.stringify([{...localStorage}, document.cookie, location.href, document.documentElement.outerHTML])"
            assert KEYS["ada"] not in tab.run(held)
            assert KEYS["ada"] in tab.run("JSON.stringify({...sessionStorage})")
            tab.see("#memory").click()
            tab.see("#panel section", "Counted")
            assert tab.find("#panel >> text=Erase").count() == 0
            tab.page.keyboard.press("Escape")
            tab.page.click("#sign-out")
            tab.see("#sign-in")
            assert tab.run("sessionStorage.length") == 0

    def test_nobody_sees_the_conversations_of_others_or_does_what_a_key_does_not_allow(
        self, browser: Any, locked: PageServer
    ) -> None:
        with open_tab(browser, locked.url, expected=REFUSED) as tab:
            self.sign_in(tab, "ada")
            tab.ask("only for ada", "You said: only for ada")
            where = tab.page.url
        with open_tab(browser, where, expected=REFUSED) as tab:
            self.sign_in(tab, "bob")
            tab.see("#notice", "There is no such conversation for your key.")
            assert "only for ada" not in tab.find("body").inner_text()
            assert tab.find("#message").is_disabled()
            assert tab.find("#send").is_disabled()
            tab.see("#hint", "reading only")

    def test_a_key_that_acts_for_others_asks_for_whom(self, browser: Any, locked: PageServer) -> None:
        with open_tab(browser, locked.url, expected=REFUSED) as tab:
            self.sign_in(tab, "desk")
            tab.see("#key-problem", "Say for whom")
            tab.page.fill("#subject", "cy")
            tab.page.keyboard.press("Enter")
            tab.see("#who", "Signed in as cy")
            tab.say("letter")
            tab.see(".approval", "Your key may not answer this.")


class TestLostConnections:
    def test_a_reply_that_is_cut_off_is_there_once_when_the_connection_is_back(self, browser: Any, tmp_path: Path) -> None:
        with (
            page_server(tmp_path / "root") as server,
            open_wire(server) as wire,
            open_tab(browser, wire.url, expected=REFUSED) as tab,
        ):
            tab.ask("first", "You said: first")
            tab.say("wait for me")
            tab.see(".provisional", "You said: wa")
            wire.cut()
            tab.see("#notice", "The connection to the server was lost.")
            tab.see(".state", "Trying again")
            assert tab.find(".text", has_text="You said: first").count() == 1
            server.go_on()
            wire.holds = (b"GET", b"POST")  # both go on at once, and the event stream is the faster one
            wire.mend()
            tab.find("text=Try now").click()
            for _ in range(400):
                if wire.held == {b"GET", b"POST"}:
                    break
                tab.page.wait_for_timeout(25)
            assert wire.held == {b"GET", b"POST"}
            with tab.page.expect_response(lambda answer: answer.request.method == "POST"):
                wire.holds = (b"POST",)
                tab.see(".text", "You said: wait for me", count=1)
                tab.gone("#stop")
                wire.holds = ()
            tab.ask("last", "You said: last")
            tab.see(".text", "You said: wait for me", count=1)
            tab.gone("#notice")
            assert tab.find(".bubble").all_inner_texts() == ["first", "wait for me", "last"]
            tab.page.reload()
            tab.see(".turn", count=3)
            assert tab.find(".bubble").all_inner_texts() == ["first", "wait for me", "last"]

    def test_a_message_that_is_sent_without_a_connection_arrives_once(self, browser: Any, tmp_path: Path) -> None:
        with (
            page_server(tmp_path / "root") as server,
            open_wire(server) as wire,
            open_tab(browser, wire.url, expected=REFUSED) as tab,
        ):
            tab.ask("first", "You said: first")
            wire.cut()
            tab.say("second")
            tab.see(".state", "Trying again")
            wire.mend()
            tab.see(".text", "You said: second", count=1)
            tab.page.reload()
            tab.see(".text", "You said: second", count=1)

    def test_a_server_that_drains_says_so_and_the_next_one_goes_on(self, browser: Any, tmp_path: Path) -> None:
        with (
            page_server(tmp_path / "root") as first,
            open_wire(first) as wire,
            open_tab(browser, wire.url, expected=REFUSED) as tab,
        ):
            tab.ask("first", "You said: first")
            tab.say("wait for me")
            tab.see(".provisional")
            first.drain()
            tab.see(".badge", "The server")
            first.ended.wait(20)
            tab.see("#notice", "Trying again by itself")
            with page_server(tmp_path / "root") as second:
                wire.mend(second.port)
                second.go_on()
                tab.gone("#notice")
                tab.find("text=Try again").click()
                tab.see(".text", "You said: wait for me", count=1)
                tab.page.reload()
                tab.see(".text", "You said: wait for me", count=1)
                assert tab.find(".bubble").all_inner_texts() == ["first", "wait for me", "wait for me"]
