"""The files of the web chat: what they contain, what they may load, and that no text becomes markup (docs/server.md).

`make doors` drives it in a browser: `test_page_in_browser.py`.
"""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from kitchener.serve.web_chat.page_files import POLICY, page_files
from tests.serve.shared.requests import Asked, Client, serving

ROOT = Path(__file__).parents[3]
FILES = {path: (name, data.decode()) for path, name, data in page_files()}
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
    r"|\beval\b|new Function|import\(|\.style\.cssText|javascript:"
)
"""What could make markup or code of a text."""


async def sent(client: Client) -> dict[str, Asked]:
    return {path: await client.ask("GET", path) for path in FILES}


async def test_it_needs_no_key_and_its_headers_let_it_load_and_run_its_own_files_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA_KEY", "key-of-ada-0123456789")
    serve = {"clients": {"ada": {"key": "env:ADA_KEY", "subject": "ada"}}}
    async with serving(tmp_path / "root", serve=serve) as client:
        for path, asked in (await sent(client)).items():
            assert (asked.status, asked.body.decode()) == (200, FILES[path][1])
            assert asked.headers["content-security-policy"] == POLICY
            assert asked.headers["x-content-type-options"] == "nosniff"
            assert asked.headers["referrer-policy"] == "no-referrer"
            kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[FILES[path][0].rpartition(".")[2]]
            assert asked.headers["content-type"] == f"{kind}; charset=utf-8"
        assert (await client.ask("GET", "/v1/me")).code == "invalid_api_key"
        assert (await client.ask("GET", "/", host="elsewhere.example")).code == "wrong_host"
        assert (await client.ask("POST", "/", {})).status == 405
    parts = dict(each.partition(" ")[::2] for each in POLICY.split("; "))
    assert {name: value for name, value in parts.items() if name != "img-src"} == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


async def test_a_browser_that_has_a_file_is_told_so_until_it_changes(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        whole = await sent(client)
        assert len({each.headers["etag"] for each in whole.values()}) == len(whole)
        for path, asked in whole.items():
            assert asked.headers["cache-control"] == "no-cache"
            again = await client.ask("GET", path, if_none_match=f'"other", W/{asked.headers["etag"]}')
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", asked.headers["etag"])
            assert (await client.ask("GET", path, if_none_match='"other"')).status == 200


async def test_it_can_be_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", serve={"page": False}) as client:
        for path, asked in (await sent(client)).items():
            assert (asked.status, asked.code) == (404, "no_such_route"), path
        assert (await client.ask("GET", "/v1/me")).status == 200


class TestFiles:
    def test_they_name_no_other_place(self) -> None:
        for path, (_, text) in FILES.items():
            found = set(re.findall(r"(?:https?:)?//[\w-]+(?:\.[\w-]+)+", text))
            assert found <= {"http://www.w3.org"}, path  # names the format of the icon, which stands in the page itself
            assert "@import" not in text
            assert not re.search(r"[\"'`(]/(?:v1|page)", text), "a reverse proxy may add a path"
            assert "url(" not in text

    def test_they_load_each_other_only(self) -> None:
        names = {name for name, _ in FILES.values()}
        page = _Elements(FILES["/"][1])
        assert {each for each in page.loaded if not each.startswith("data:")} == {
            "page/palette.css",
            "page/page.css",
            "page/main.js",
        }
        imported = {each for _, text in FILES.values() for each in re.findall(r'from "([^"]*)"', text)}
        assert {each.removeprefix("./") for each in imported} | {"main.js", "index.html", "page.css", "palette.css"} == names
        assert page.inline == []
        assert len(page.ids) == len(set(page.ids))

    def test_every_element_that_a_module_looks_up_is_in_the_page(self) -> None:
        wanted = {each for _, text in FILES.values() for each in re.findall(r'find\("([^"]*)"\)', text)}
        assert len(wanted) > 20
        assert wanted <= set(_Elements(FILES["/"][1]).ids)

    def test_nothing_in_them_makes_markup_or_code_of_text(self) -> None:
        for path, (_, text) in FILES.items():
            assert SINKS.findall(text) == [], path

    @pytest.mark.parametrize("builder", [WheelBuilder, SdistBuilder])
    def test_what_is_installed_has_them(self, builder: type[WheelBuilder] | type[SdistBuilder]) -> None:
        held = {each.distribution_path for each in builder(str(ROOT)).recurse_included_files()}
        wanted = {f"kitchener/serve/web_chat/assets/{name}" for name, _ in FILES.values() if name != "palette.css"}
        wanted.add("kitchener/inspection/palette.css")
        assert {each for each in wanted if each not in held and f"src/{each}" not in held} == set()


class _Elements(HTMLParser):
    """What a page loads, and its parts that its policy would refuse."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.loaded, self.inline, self.ids = list[str](), list[str](), list[str]()
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loaded += [str(found[each]) for each in ("src", "href") if each in found]
        self.ids += [str(found["id"])] if "id" in found else []
        self.inline += [name for name in found if name == "style" or name.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in found) else []
