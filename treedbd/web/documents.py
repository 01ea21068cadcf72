"""The documentation, served by the daemon itself, so that it is there without a network.

`/.docs/` is its index, with a search box. `/.docs/interface.md` is a page as it is written, and
rendered for browsers; beside the pages are the files to which they lead, as plain text. No path of
a request names a file: all that there is to serve is in the tables here. The files are in the
package if it was installed from a wheel, and in a checkout where they are written.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime

from treedbd.database.slices import Slices, Steps
from treedbd.files import SAMPLES, find_project_file
from treedbd.http1.headers import Header, prefers_html
from treedbd.http1.interface import IHttp1Request
from treedbd.web.html_page import ALONE_HEADERS, html_page, read_static
from treedbd.web.response import Response

DOCUMENTS: Final = (
    "interface.md",
    "rules.md",
    "identity.md",
    "clients.md",
    "command.md",
    "serving.md",
    "browser.md",
    "board.md",
    "moving-from-firebase.md",
    "embedding.md",
    "operating.md",
    "logging.md",
    "deployment.md",
    "proxies.md",
    "tracing.md",
    "monitoring.md",
    "security.md",
    "dependencies.md",
    "performance.md",
    "internals.md",
    "decisions.md",
)
"""The pages in `docs/`."""
BESIDE: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""The pages beside `docs/`."""
DOCS_FILES: Final = (
    "embedding.py",
    "embedding.rules.json",
    "embedding/in_process.py",
    "embedding/own_login.py",
    "embedding/own_login.rules.json",
    "embedding/test_without_sockets.py",
    "embedding/with_asyncio.py",
    "examples/chat.html",
    "rules/chat.rules.json",
    "rules/chat.test.json",
    "shelf.py",
    "watch.svg",
)
"""The files in `docs/` that are no pages."""

_PAGES: Final = {
    **{name: f"docs/{name}" for name in DOCUMENTS},
    **{name: name for name in BESIDE},
}
_FILES: Final = {
    **{name: f"docs/{name}" for name in DOCS_FILES},
    **{f"conf/{name}": f"conf/{name}" for name in SAMPLES},
}
_NAMES: Final = {place: name for name, place in {**_PAGES, **_FILES}.items()}
_SCRIPT: Final = "search.js"
_SECTIONS: Final = "search.json"
DOCUMENT_PATHS: Final = ("/.docs/", *(f"/.docs/{name}" for name in _PAGES))
DOCUMENT_FILE_PATHS: Final = tuple(f"/.docs/{name}" for name in (*_FILES, _SCRIPT, _SECTIONS))

_TYPE: Final = "text/markdown"
_HEADERS: Final = ((b"Content-Type", b"text/markdown; charset=utf-8"), (b"Vary", b"Accept"))
_TYPES: Final = {".svg": b"image/svg+xml"}
_TEXT: Final = b"text/plain; charset=utf-8"
_INDEX_SOURCE: Final = "README.md"
_INDEX_HEADING: Final = "## Documentation\n"
_OUTER_LINK: Final = re.compile(r"https?://.+")
_NOT_IN_ANCHOR: Final = re.compile(r"[^\w\- ]")
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_NAVIGATION: Final = """<nav>
<a href="../">treedb</a> <a href="./">Documentation</a> <a href="interface.md">Reference</a>
<input id="search" type="search" placeholder="Search" aria-label="Search the documentation" hidden>
<ul id="found" aria-live="polite" hidden></ul>
</nav>
<script src="search.js" defer></script>
"""


class MissingDocument(LookupError):
    """A page of the documentation that this installation does not have."""

    def __init__(self) -> None:
        super().__init__("The documentation is not part of this installation.")


class Documents:
    """Serves the documentation; each page is read and rendered once."""

    def __init__(self, clock: IReactorTime) -> None:
        """Render in slices, which `clock` schedules."""
        self._slices = Slices(clock)
        self._making = DeferredLock()
        self._sources: dict[str, bytes] = {}
        self._made: dict[str, Response] = {}

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the page of one of `DOCUMENT_PATHS`, in the form that the client prefers.

        Raises `MissingDocument`.
        """
        name = _find_name(request)
        if not name and request.postpath[-1]:
            # Links in the index are relative to this folder.
            return Response(308, b"", ((b"Location", b".docs/"), (b"Content-Type", _TEXT)))
        source = self._read(name)
        if not prefers_html(request.headers, _TYPE):
            return Response(200, source, _HEADERS)
        return await self._make(name, self._render_in_steps)

    async def answer_file(self, request: IHttp1Request) -> Response:
        """Return what is at one of `DOCUMENT_FILE_PATHS`; raise `MissingDocument`."""
        name = _find_name(request)
        if name == _SCRIPT:
            script = read_static(_SCRIPT)
            return Response(200, script, _headers_of(b"text/javascript; charset=utf-8"))
        if name == _SECTIONS:
            return await self._make(name, self._list_sections)
        content_type = _TYPES.get(posixpath.splitext(name)[1], _TEXT)
        return Response(200, self._read(name), _headers_of(content_type))

    def _read(self, name: str) -> bytes:
        """Return a page or a file, or for the empty name the index, which is a part of a page."""
        if name not in self._sources:
            place = {**_PAGES, **_FILES, "": _INDEX_SOURCE}[name]
            try:
                source = find_project_file(place).read_bytes()
            except OSError:
                raise MissingDocument from None
            self._sources[name] = source if name else _find_index(source.decode()).encode()
        return self._sources[name]

    async def _make(self, name: str, steps: Callable[[str], Iterator[Response | None]]) -> Response:
        """Return what was made for a name, once: `steps` yield None until they are done."""
        if name not in self._made:
            await self._making.run(self._start, name, steps)
        return self._made[name]

    def _start(
        self, name: str, steps: Callable[[str], Iterator[Response | None]]
    ) -> Deferred[None]:
        """Make something, unless that was done meanwhile."""
        done: Deferred[None] = Deferred()
        if name in self._made:
            done.callback(None)
        else:
            self._slices.start(self._run(name, steps, done))
        return done

    def _run(
        self, name: str, steps: Callable[[str], Iterator[Response | None]], done: Deferred[None]
    ) -> Steps:
        try:
            for made in steps(name):
                if made is not None:
                    self._made[name] = made
                yield
        except Exception:
            done.errback()
        else:
            done.callback(None)

    def _render_in_steps(self, name: str) -> Iterator[Response | None]:
        source = self._read(name).decode()
        folder = posixpath.dirname(_PAGES.get(name, _INDEX_SOURCE))
        parts = []
        for section in split_sections(source):
            parts.append(render(section, folder))
            yield None
        title = source.partition("\n")[0].strip("# ")
        yield html_page(f"{title} · treedb", _NAVIGATION + "".join(parts), has_scripts=True)

    def _list_sections(self, _: str) -> Iterator[Response | None]:
        """Make what the search box searches: every section of every page, as it is written."""
        found = []
        for name in _PAGES:
            source = self._read(name).decode()
            title = source.partition("\n")[0].strip("# ")
            for section in split_sections(source):
                found.append(json.dumps(_describe(name, title, section), ensure_ascii=False))
                yield None
        body = f"[{','.join(found)}]".encode()
        yield Response(200, body, _headers_of(b"application/json"))


def _find_name(request: IHttp1Request) -> str:
    """Return what a path names below `/.docs/`, as the dispatch reads it."""
    segments = [segment.decode() for segment in request.postpath if segment]
    return "/".join(segments[1:]).replace("/.json", ".json")


def _headers_of(content_type: bytes) -> tuple[Header, ...]:
    return ((b"Content-Type", content_type), *ALONE_HEADERS)


def _find_index(readme: str) -> str:
    """Return the list of all pages, which the README has in a section of its own."""
    return next(each for each in split_sections(readme) if each.startswith(_INDEX_HEADING))


def _describe(name: str, title: str, section: str) -> Mapping[str, str]:
    heading, _, text = section.partition("\n")
    shown = heading.strip("# ") if heading.startswith("#") else ""
    anchor = find_anchor(shown)
    return {"page": name, "title": title, "heading": shown, "anchor": anchor, "text": text.strip()}


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


def render(section: str, folder: str = "docs") -> str:
    """Return Markdown of a page in `folder` as HTML, with anchors.

    Links lead to where what they name is served; a link to what is not is plain text.
    """
    tokens = _MARKDOWN.parse(section)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", find_anchor(following.content))
    for token in tokens:
        _turn_links(token.children or (), folder)
    rendered: Any = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return str(rendered)


def find_anchor(heading: str) -> str:
    """Return the anchor of a heading, as links to it are written."""
    return _NOT_IN_ANCHOR.sub("", heading.lower()).replace(" ", "-")


def _turn_links(tokens: Sequence[Token], folder: str) -> None:
    is_dead = False
    for token in tokens:
        if token.type == "image":
            token.attrs["src"] = _find_target(str(token.attrs["src"]), folder) or ""
        if token.type == "link_open":
            target = _find_target(str(token.attrs["href"]), folder)
            is_dead = target is None
            token.attrs["href"] = target or ""
        if is_dead and token.type in ("link_open", "link_close"):
            token.tag, token.attrs = "span", {}


def _find_target(link: str, folder: str) -> str | None:
    """Return a link as it is below `/.docs/`; None if nothing is served there."""
    if _OUTER_LINK.fullmatch(link) or link.startswith("#"):
        return link
    path, mark, anchor = link.partition("#")
    name = _NAMES.get(posixpath.normpath(posixpath.join(folder, path)))
    return None if name is None else f"{name}{mark}{anchor}"
