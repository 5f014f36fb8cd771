"""Whatever people, models, tools and settings say, the page of a turn shows it as text and does nothing (docs/security.md)."""

from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from kitchener import tool
from kitchener.inspection.shown_text import harmless
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import open_scripted
from tests.cli.conftest import Cli, cli, memory_root, taught  # noqa: F401  the fixtures
from tests.cli.context.turn_page.pages import read_page
from tests.hostile.texts.test_terminal import EVERYTHING, FORBIDDEN

SESSION: Final = "SES-0000000a"
ESCAPES: Final = {
    "an element": "<script>alert(1)</script><img src=x onerror=alert(1)><style>*{display:none}</style>",
    "the end of a script": "</script></style></title><script src=//127.0.0.1/x></script>",
    "the end of a block": "</pre></details></section></main></body></html><base href=//127.0.0.1/>",
    "an attribute": "\" onmouseover=\"alert(1)\" x=' onfocus='alert(1)' autofocus `",
    "a link": "javascript:alert(1) http://127.0.0.1/ <a href=//127.0.0.1/>x</a> <meta http-equiv=refresh content=0>",
    "a reference": "&lt;script&gt; &#60;b&#62; &amp;amp; &nosuch;",
    "a comment": "<!-- --> --!> <![CDATA[ ]]> <?php ?>",
    "a template": "{{ 7 * 7 }} {% raw %} {# x #} {{ policy.__class__ }}",
    "a diff": "\n+++ this turn\n--- the turn before\n@@ -1 +1 @@\n<data-0123456789abcdef>",
    "controls": EVERYTHING,
    "a line feed at the start": "\n\n x",
}
ESCAPES["all of them"] = " ".join(ESCAPES.values())
ALONE: Final = ("a diff", "a line feed at the start")
"""What depends on where it stands."""


OTHERS: Final = [each for each in ESCAPES if each not in ("all of them", *ALONE)]


@tool(read_only=True)
def look(what: str) -> str:
    """Looks at <b>what</b> it is told."""
    return f"seen {what}"


def record(folder: Path, text: str) -> None:
    """Two turns in which the user, the model, the tool, its arguments, and the settings say a text."""

    def model(request: Any) -> Any:
        if request.wo_type == "classify":
            return {"speech_act": text, "intent_relation": "switch", "candidate_objective": f"goal {text}", "confidence": 1.0}
        asked = any(each.role == "tool" for each in request.messages)
        return {"response_text": f"reply {text}"} if asked else use_tool("look", what=text)

    settings: dict[str, Any] = {
        "context_mode": "enforce",
        "intent_mode": "classified",
        "instructions": f"instructions {harmless(text)}",
        "standing_rules": [f"rule {harmless(text)}"],
    }

    async def talk() -> None:
        async with open_scripted(folder, ScriptedProvider(model), tools=[look], **settings) as runtime:
            await runtime.supervisor().start_session(SESSION, subject_id=f"ada {' '.join(harmless(text).split())[:60]}".strip())
            for number in (1, 2):
                await runtime.supervisor().handle_turn(f"message {number} {text}", session_id=SESSION)

    anyio.run(talk)


@pytest.mark.parametrize("name", ["all of them", *ALONE, *(pytest.param(each, marks=pytest.mark.soak) for each in OTHERS)])
def test_foreign_text_is_shown_as_it_was_said_and_is_no_markup(cli: Cli, tmp_path: Path, name: str) -> None:  # noqa: F811
    """`read_page` refuses elements, attributes and links that the template does not have, and what does not nest."""
    text = ESCAPES[name]
    record(tmp_path / ".kitchener", text)
    outcome = cli("context", "explain", "last", "--html", "--out", "page.html")
    assert outcome.code == 0, outcome.err
    page = read_page(Path("page.html"))
    assert FORBIDDEN.search(page.source) is None
    shown = harmless(text)
    for said in (f"message 2 {shown}", f"reply {shown}", f"seen {shown}"):
        assert said in page.blocks
    blocks = "\n".join(page.blocks)
    for said in (f"instructions {shown}", f"rule {shown}", f"Goal: goal {shown}".strip()):
        assert said in blocks
    calls = cli("context", "explain", "last", "--prompt", "--json").json["calls"]
    for message in (message for call in calls for message in call["messages"] if not message.get("tool_uses")):
        assert harmless(message["content"]) in page.blocks
