"""A headless Chromium for tests of the web chat. `make doors` installs what drives it and runs them.

PAGE_DOORS=.doors/python   the folder where `pip` has installed Playwright
"""

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

DOORS: Final = os.environ.get("PAGE_DOORS", "")
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
REFUSED: Final = ("Failed to load resource",)
"""What the console says of an answer that is an error, or of a lost connection, both of which some tests bring about."""
LIMIT_MS: Final = 30_000

CONTRAST: Final = """() => {
  const lum = (rgb) => rgb.map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; })
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const parsed = (colour) => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const found = parsed(getComputedStyle(each).backgroundColor);
      if (found[3] === 1) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!hasText || !node.checkVisibility() || node.disabled || node.closest("[inert], .unseen, noscript")) continue;
    const [one, other] = [lum(parsed(getComputedStyle(node).color).slice(0, 3)), lum(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
"""The texts that are in sight with less contrast than level AA of WCAG asks for."""


def chromium() -> str:
    """The program. Raises RuntimeError where there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise RuntimeError("Chromium is not installed; for example: apt-get install chromium")
    return found


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser."""
    if DOORS not in sys.path:
        sys.path.insert(0, DOORS)
    playwright = importlib.import_module("playwright.sync_api")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=as_root)
        yield browser
        browser.close()


class Tab:
    """A tab with a profile of its own. Made by `open_tab`."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def find(self, selector: str, **options: Any) -> Any:
        """The elements that fit a selector."""
        return self.page.locator(selector, **options)

    def see(self, selector: str, text: str | None = None, *, count: int | None = None) -> Any:
        """Waits until an element is in sight, which has the text; with a count, until there are that many."""
        found = self.find(selector, **({} if text is None else {"has_text": text}))
        if count is not None:
            self.page.wait_for_function(
                "([selector, text, count]) => [...document.querySelectorAll(selector)]"
                ".filter((each) => each.checkVisibility() && each.textContent.includes(text)).length === count",
                arg=[selector, text or "", count],
            )
            return found
        found.first.wait_for(state="visible")
        return found

    def gone(self, selector: str) -> None:
        """Waits until nothing that fits is in sight."""
        self.find(selector).first.wait_for(state="hidden")

    def say(self, message: str) -> None:
        """Sends a message by keyboard."""
        self.page.fill("#message", message)
        self.page.press("#message", "Enter")

    def ask(self, message: str, reply: str) -> Any:
        """Sends a message, and waits for its reply; the turn."""
        before = self.find(".turn").count()
        self.say(message)
        turn = self.find(".turn").nth(before)
        turn.locator(".reply .text", has_text=reply).first.wait_for()
        turn.locator("text=Why this reply?").wait_for()
        return turn

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(script)

    def is_narrow(self) -> bool:
        """Whether nothing has to be scrolled sideways."""
        return bool(self.run("document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth"))


@contextmanager
def open_tab(browser: Any, url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Tab]:
    """A tab that shows an address. Fails if the page asked for anything of elsewhere, or complained about something.

    Args:
        browser: the browser
        url: where it begins
        expected: beginnings of complaints that are no failure
        **options: of the profile
    """
    elsewhere, complaints = list[str](), list[str]()

    def check(route: Any) -> None:
        if urlsplit(route.request.url).hostname in ("127.0.0.1", None):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    def complain(message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(expected or ("\0",)):
            complaints.append(message.text)

    context = browser.new_context(**{"viewport": {"width": 1_100, "height": 800}, **options})
    try:
        context.route("**/*", check)
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        tab = Tab(page)
        try:
            yield tab
        except Exception as error:
            error.add_note(f"{page.url}: {page.inner_text('body')}\n{complaints}")
            raise
    finally:
        context.close()
    assert (elsewhere, complaints) == ([], [])
