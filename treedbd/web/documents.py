"""The documentation, served by the daemon itself, so that it is there without a network.

`/.docs/interface.md` is the page as it is written, and rendered for browsers. The pages are those
of `DOCUMENTS`; no path of a request names a file. They are in the package if it was installed from
a wheel, and in the folder `docs` of a checkout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime

from treedbd.database.slices import Slices, Steps
from treedbd.installation import find_project_file
from treedbd.web.html_page import html_page
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.media_types import prefers_html
from treedbd.web.response import Response

DOCUMENTS: Final = (
    "interface.md",
    "rules.md",
    "identity.md",
    "clients.md",
    "command.md",
    "embedding.md",
    "operating.md",
    "logging.md",
    "deployment.md",
    "proxies.md",
    "tracing.md",
    "monitoring.md",
)
DOCUMENT_PATHS: Final = tuple(f"/.docs/{name}" for name in DOCUMENTS)

_TYPE: Final = "text/markdown"
_HEADERS: Final = ((b"Content-Type", b"text/markdown; charset=utf-8"), (b"Vary", b"Accept"))
_LINK: Final = re.compile(r"(?:https?://.+|(?:([a-z]+\.md))?(?:#.*)?)")
_NOT_IN_ANCHOR: Final = re.compile(r"[^\w\- ]")
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_NAVIGATION: Final = '<nav><a href="../">treedb</a> <a href="interface.md">Reference</a></nav>\n'


class MissingDocument(LookupError):
    """A page of the documentation that this installation does not have."""

    def __init__(self) -> None:
        super().__init__("The documentation is not part of this installation.")


class Documents:
    """Serves the pages of the documentation; each is read and rendered once."""

    def __init__(self, clock: IReactorTime) -> None:
        """Render in slices, which `clock` schedules."""
        self._slices = Slices(clock)
        self._rendering = DeferredLock()
        self._sources: dict[str, bytes] = {}
        self._rendered: dict[str, Response] = {}

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the page of one of `DOCUMENT_PATHS`, in the form that the client prefers.

        Raises `MissingDocument`.
        """
        name = next(each for each in DOCUMENTS if each.encode() in request.postpath)
        source = self._read(name)
        if not prefers_html(request.headers, _TYPE):
            return Response(200, source, _HEADERS)
        if name not in self._rendered:
            await self._rendering.run(self._render, name, source.decode())
        return self._rendered[name]

    def _read(self, name: str) -> bytes:
        if name not in self._sources:
            try:
                self._sources[name] = find_project_file(f"docs/{name}").read_bytes()
            except OSError:
                raise MissingDocument from None
        return self._sources[name]

    def _render(self, name: str, source: str) -> Deferred[None]:
        """Render a page, unless that was done meanwhile."""
        done: Deferred[None] = Deferred()
        if name in self._rendered:
            done.callback(None)
        else:
            self._slices.start(self._render_in_steps(name, source, done))
        return done

    def _render_in_steps(self, name: str, source: str, done: Deferred[None]) -> Steps:
        parts = []
        try:
            for section in split_sections(source):
                parts.append(render(section))
                yield
            title = source.partition("\n")[0].strip("# ")
            self._rendered[name] = html_page(f"{title} · treedb", _NAVIGATION + "".join(parts))
        except Exception:
            done.errback()
        else:
            done.callback(None)


def split_sections(source: str) -> Iterator[str]:
    """Split Markdown before each heading; a line in a block of code is none."""
    lines: list[str] = []
    is_code = False
    for line in source.splitlines(keepends=True):
        if line.startswith("```"):
            is_code = not is_code
        elif line.startswith("#") and not is_code:
            yield "".join(lines)
            lines.clear()
        lines.append(line)
    yield "".join(lines)


def render(section: str) -> str:
    """Return Markdown as HTML, with anchors; only links to what can be reached stay links."""
    tokens = _MARKDOWN.parse(section)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", find_anchor(following.content))
    for token in tokens:
        _drop_dead_links(token.children or ())
    rendered: Any = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return str(rendered)


def find_anchor(heading: str) -> str:
    """Return the anchor of a heading, as links to it are written."""
    return _NOT_IN_ANCHOR.sub("", heading.lower()).replace(" ", "-")


def _drop_dead_links(tokens: Sequence[Token]) -> None:
    """Make links to what is not served, such as sources, plain text."""
    is_dead = False
    for token in tokens:
        if token.type == "link_open":
            found = _LINK.fullmatch(str(token.attrs["href"]))
            is_dead = found is None or (found[1] is not None and found[1] not in DOCUMENTS)
        if is_dead and token.type in ("link_open", "link_close"):
            token.tag, token.attrs = "span", {}
