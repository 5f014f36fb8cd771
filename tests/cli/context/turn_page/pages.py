"""Reads a page as a browser would, and checks what must hold for every page: it nests, loads nothing and runs nothing."""

import base64
import re
from dataclasses import dataclass, field
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

TAGS: Final = (
    "html head meta title style body header main footer nav section article h1 h2 h3 p b br code pre span div "
    "ul li dl dt dd a details summary svg rect line table caption thead tbody tr th td"
)
VOID: Final = frozenset(("meta", "br"))
ATTRIBUTES: Final = (
    "lang charset http-equiv content name id class href dir role scope open width height x y x1 x2 y1 y2 "
    "data-name aria-label aria-labelledby aria-hidden"
)
_POLICY: Final = re.compile(r"default-src 'none'; style-src 'sha256-([A-Za-z0-9+/=]+)'; base-uri 'none'; form-action 'none'")


@dataclass
class Page(HTMLParser):
    """What a page holds."""

    source: str
    blocks: list[str] = field(default_factory=list)
    """The texts of its `pre` elements, exactly."""
    text: str = ""
    """All that a reader sees, with every detail opened."""
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    style: str = ""
    policy: str = ""
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        assert self._open == [], "every element is closed"
        assert len(self.ids) == len(set(self.ids)), "no id stands twice"
        assert {each.removeprefix("#") for each in self.links} <= set(self.ids), "every link leads somewhere in the page"
        hashed = _POLICY.fullmatch(self.policy)
        assert hashed is not None, self.policy
        assert hashed[1] == base64.b64encode(sha256(self.style.encode()).digest()).decode()
        assert "url(" not in self.style
        assert "@import" not in self.style

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS.split(), tag
        found = dict(attrs)
        assert found.keys() <= set(ATTRIBUTES.split()), (tag, attrs)
        if tag == "a":
            assert str(found["href"]).startswith("#"), found
            self.links.append(str(found["href"]))
        if "id" in found:
            self.ids.append(str(found["id"]))
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(found["content"])
        if tag not in VOID:
            self._open.append(tag)
        if tag == "pre":
            self.blocks.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        if tag == "pre":
            self.blocks[-1] = self.blocks[-1].removeprefix("\n")  # the one line feed that a browser drops

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            self.style += data
            return
        if "pre" in self._open:
            self.blocks[-1] += data
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def read_page(path: Path) -> Page:
    """A page that was written."""
    return Page(path.read_bytes().decode())
