"""Pages for browsers: the front page, the documentation, the frame of both; and health.

The files of a page are in the folder `static`. A page loads nothing: it contains its style and its
icon, and its Content-Security-Policy forbids all else, except requests to its own origin, which
code that a user pastes into the console of the browser may send. A page of the documentation also
loads one script, from its own origin. Parts of a request, such as its host, and the names of
databases are escaped where they are inserted into HTML, a shell command or JavaScript.

`FrontPage` is at `/`. In development mode it lists the databases and shows commands that work when
pasted; elsewhere it says only what this is and how to address it.

`Documents` serves the documentation below `/.docs/`, so that it can be read without a network: its
index with a search box, each page as it is written, and rendered for browsers; and as plain text
the files that the pages link to. A request can only name what is in the tables here, never another
file. The files are in the package if it was installed from a wheel, and elsewhere in a checkout.

`Health` answers `/.health`: one word for all callers, reasons for admins.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.python.reflect import namedAny
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from treedbd import __version__
from treedbd.caches import bounded_cache
from treedbd.database.catalog import Catalog
from treedbd.database.requests import SHUTTING_DOWN, DeadlinePassed, Unavailable
from treedbd.database.runtime import Problem
from treedbd.database.slices import Slices, Steps
from treedbd.files import SAMPLES, find_project_file
from treedbd.http1.parser import Header, Headers, first, joined
from treedbd.http1.request import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.loop import Turns
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN
from treedbd.tree.types import InvalidPath, InvalidQuery
from treedbd.web.auth.identity import AuthRequired, Identity, NotAdmin
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.auth.verifier import OWNER_TOKEN, Authenticator, IdentifyFailed
from treedbd.web.console import Console
from treedbd.web.context import Users
from treedbd.web.origins import ForeignOrigin, is_loopback, is_loopback_address
from treedbd.web.request import READING, NoDatabaseNamed, RequestParser, find_token
from treedbd.web.response import JSON_TYPE, Response, address_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

    from treedbd.config.settings import Settings

MAX_ACCEPT_CHARACTERS: Final = 1024
"""A longer field is not parsed: browsers send less than 200."""

_HTML: Final = ("text/html", "text/html;charset=utf-8")


def prefers_html(headers: Headers, other: str) -> bool:
    """Return whether a client prefers HTML to the media type `other`; False for a tie."""
    accepted = joined(headers, b"accept")
    if accepted is None or len(accepted) > MAX_ACCEPT_CHARACTERS:
        return False
    return _prefers_html(accepted, other)


@bounded_cache(128)
def _prefers_html(accepted: str, other: str) -> bool:
    ranges = parse_accept_header(accepted, MIMEAccept)
    return max(map(ranges.quality, _HTML)) > ranges.quality(other)


MAX_ICON_AGE_S: Final = 86_400

_STATIC: Final = files("treedbd.web") / "static"


def read_static(name: str) -> bytes:
    """Return a file of the folder of the pages."""
    return (_STATIC / name).read_bytes()


def read_template(name: str) -> Template:
    """Return a template from the folder of the pages; values must be escaped before."""
    return Template(read_static(name).decode())


def _digest(content: str) -> str:
    """Return the source expression of an inline style (CSP level 3, section 2.3.1)."""
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest())
    return f"'sha256-{digest.decode()}'"


_STYLE: Final = (_STATIC / "style.css").read_text(encoding="utf-8")
_ICON: Final = (_STATIC / "favicon.svg").read_bytes()
ICON_URL: Final = f"data:image/svg+xml;base64,{base64.b64encode(_ICON).decode()}"
"""The icon of the service, to be put into a page."""
_FRAME: Final = read_template("frame.html")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_digest(_STYLE)}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_POLICY_WITH_SCRIPTS: Final = f"{_POLICY}; script-src 'self'"
ALONE_HEADERS: Final[tuple[Header, ...]] = ((b"Content-Security-Policy", b"default-src 'none'"),)
"""Headers of what is not a page: opened by itself, it runs no script."""
_ICON_HEADERS: Final[tuple[Header, ...]] = ((b"Content-Type", b"image/svg+xml"), *ALONE_HEADERS)

ICON: Final = Response(200, _ICON, _ICON_HEADERS, max_age_s=MAX_ICON_AGE_S)
"""The icon of the service."""


def html_page(title: str, main: str, *, has_scripts: bool = False) -> Response:
    """Return a page; `title` is text, `main` is HTML, with scripts if it `has_scripts`."""
    page = _FRAME.substitute(
        title=escape(title),
        style=_STYLE,
        icon=ICON_URL,
        main=main,
    )
    policy = _POLICY_WITH_SCRIPTS if has_scripts else _POLICY
    headers = (
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", policy.encode()),
        (b"X-Frame-Options", b"DENY"),
        (b"Vary", b"Accept"),
    )
    return Response(200, page.encode(), headers)


MAX_SHOWN_DATABASES: Final = 50
_NEW_DATABASES: Final = "A database of any name is created at its first write."
PLACEHOLDER: Final = "PROJECT"
"""The placeholder in a command, where the user has to name a project."""

_DEVELOPMENT: Final = read_template("front_development.html")
_CONFIGURED: Final = read_template("front_configured.html")
_JAVASCRIPT: Final = read_template("lines.js")
_TOKENS: Final = (
    "The rules of a project say who may read and write. Send a token in the header "
    "<code>Authorization: Bearer …</code>."
)
_RULES_IN_FORCE: Final = f"<p>{_TOKENS} Where they deny, these lines need one.</p>"
_ADMIN_NOTE: Final = (
    '<p class="soft">Rules have been put, so these lines have the token of an admin, who is '
    "exempt from rules.</p>"
)
_CONSOLE_LINK: Final = (
    '<p><a href="{}">The console</a>, to look at the data and to edit it, asks for a token.</p>'
)
_NAME_PROJECT: Final = f"Put the name of a project in the place of <code>{PLACEHOLDER}</code>. "


def curl_line(
    target: str, arguments: Sequence[str], certificate: str | None, token: str | None
) -> str:
    """Return a command for a shell; `certificate` is a file that verifies the server."""
    trust = [] if certificate is None else ["--cacert", certificate]
    identity = [] if token is None else ["-H", f"Authorization: Bearer {token}"]
    return shlex.join(["curl", *trust, *identity, *arguments, target])


@attrs.frozen
class _Visit:
    """What a request for the page addresses.

    `host` has its port; `base` is the path under which the tree is mounted, with a slash at both
    ends. `name` is the database, None if none is named; `label` is the value of `ns` where links
    need it, and `is_named_by_host` says whether they do not.
    """

    is_secure: bool
    host: str
    base: str
    name: DatabaseName | None
    label: str | None
    is_named_by_host: bool

    def path(self, rest: str, parameters: Mapping[str, str] | None = None) -> str:
        """Return the path and query of a place in the tree."""
        query = {} if self.label is None else {"ns": self.label}
        query.update(parameters or {})
        return self.base + rest + (f"?{urlencode(query)}" if query else "")

    def url(self, rest: str, parameters: Mapping[str, str] | None = None) -> str:
        """Return the URL of a place in the tree."""
        scheme = "https" if self.is_secure else "http"
        return f"{scheme}://{self.host}{self.path(rest, parameters)}"

    def link_to(self, name: DatabaseName) -> str:
        """Return a link to the root of another database."""
        if not self.is_named_by_host:
            return f"{self.base}.json?{urlencode({'ns': name.label, 'print': 'pretty'})}"
        return f"//{name.label}.{self.host.partition('.')[2]}{self.base}.json?print=pretty"


class FrontPage:
    """Answers browsers that request the root of the service."""

    def __init__(
        self, settings: Settings, parser: RequestParser, catalog: Catalog, console: Console
    ) -> None:
        """Show the databases of `catalog` if the settings are those of development mode.

        The page leads to the `console` where that is served.
        """
        self._console = console
        self._settings = settings
        self._parser = parser
        self._catalog = catalog

    def is_wanted(self, request: IHttp1Request) -> bool:
        """Return whether a request for the root is for the page."""
        return request.method in READING and prefers_html(request.headers, "application/json")

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the page; raise the error of a host or an `ns` that names no database."""
        visit = self._parse(request)
        if self._settings.development:
            page = self._show_development(visit, is_loopback_address(address_of(request)))
        else:
            page = _show_configured(visit, has_console=self._console.is_served(request))
        # The page repeats the host and `ns` of the request, and may contain a token: if it were
        # compressed, its length would reveal something of the token (BREACH).
        return attrs.evolve(page, may_be_encoded=False)

    async def answer_icon(self, _: IHttp1Request) -> Response:
        """Return the icon, which a browser requests beside any page."""
        return ICON

    def _parse(self, request: IHttp1Request) -> _Visit:
        by_host = self._parser.check_host(request)
        name: DatabaseName | None = None
        label: str | None = PLACEHOLDER
        try:
            location = self._parser.locate(request)
        except NoDatabaseNamed:
            pass
        else:
            name = location.name
            has_label = by_host is None and "ns" in location.parameters
            label = name.label if has_label else None
        host = first(request.headers, b"host") or ""
        return _Visit(
            is_secure=_is_secure(request, host),
            host=host,
            base="".join(f"/{quote(each, safe='')}" for each in request.prepath if each) + "/",
            name=name,
            label=label,
            is_named_by_host=by_host is not None,
        )

    def _show_development(self, visit: _Visit, is_near: bool) -> Response:
        is_open = visit.name is None or self._catalog.rules(visit.name.project).current is OPEN
        token = OWNER_TOKEN if self._settings.emulator and not is_open else None
        certificate = None
        if visit.is_secure:
            certificate = _show_file(self._settings.created_certificate, is_near=is_near)
        body = ("-X", "PUT", "-d", '"world"')
        main = _DEVELOPMENT.substitute(
            icon=ICON_URL,
            version=escape(__version__),
            curl=escape(curl_line(_for_curl(visit).url("hello.json"), body, certificate, token)),
            javascript=escape(_print_javascript(visit, token), quote=False),
            note="" if is_open else _RULES_IN_FORCE if token is None else _ADMIN_NOTE,
            databases=self._list_databases(visit) if is_near else self._name_database(visit),
            more=self._describe_more() if is_near else _NEW_DATABASES,
            reference=escape(f"{visit.base}.docs/interface.md"),
            documentation=escape(f"{visit.base}.docs/"),
            console=escape(f"{visit.base}.console/"),
        )
        return html_page("treedb", main)

    def _list_databases(self, visit: _Visit) -> str:
        """Return all databases, for a client of this machine."""
        names = self._catalog.written.first(MAX_SHOWN_DATABASES)
        items = [f'<a href="{escape(visit.link_to(each))}">{each.label}</a>' for each in names]
        if visit.name is not None and visit.name not in self._catalog.written:
            items.insert(0, f"<span>{visit.name.label} (empty)</span>")
        return "\n".join(f"<li>{item}</li>" for item in items)

    def _name_database(self, visit: _Visit) -> str:
        """Return the addressed database: only admins may know which others exist."""
        if visit.name is None:
            return ""
        return f'<li><a href="{escape(visit.link_to(visit.name))}">{visit.name.label}</a></li>'

    def _describe_more(self) -> str:
        more = len(self._catalog.written) - MAX_SHOWN_DATABASES
        shown = f"There are {more} more. " if more > 0 else ""
        return f"{shown}{_NEW_DATABASES}"


def _show_configured(visit: _Visit, *, has_console: bool) -> Response:
    target = visit.url(".json", {"shallow": "true"})
    main = _CONFIGURED.substitute(
        icon=ICON_URL,
        curl=escape(curl_line(target, (), None, None)),
        console=_CONSOLE_LINK.format(escape(f"{visit.base}.console/")) if has_console else "",
        advice=_TOKENS if visit.name is not None else _NAME_PROJECT + _TOKENS,
        reference=escape(f"{visit.base}.docs/interface.md"),
        documentation=escape(f"{visit.base}.docs/"),
    )
    return html_page("treedb", main)


def _for_curl(visit: _Visit) -> _Visit:
    """Return the same database by another address if curl could not verify this one.

    OpenSSL accepts no wildcard of a certificate for a name below a top-level one, as `*.localhost`.
    """
    if not (visit.is_secure and visit.is_named_by_host and visit.name is not None):
        return visit
    return attrs.evolve(visit, host=visit.host.partition(".")[2], label=visit.name.label)


def _print_javascript(visit: _Visit, token: str | None) -> str:
    query = {} if token is None else {"auth": token}
    return _JAVASCRIPT.substitute(
        url=json.dumps(visit.path("hello.json", query)),
        stream=json.dumps(visit.path("hello.json", {**query, "resume": "true"})),
    )


def _is_secure(request: IHttp1Request, host: str) -> bool:
    """Return whether the browser uses TLS, even if a proxy terminates it.

    Browsers send `Sec-Fetch-Site` over TLS only, and to this machine (Fetch Metadata, section 4).
    """
    if request.isSecure():
        return True
    return b"sec-fetch-site" in request.headers and not is_loopback(f"http://{host}")


def _show_file(file: pathlib.Path, *, is_near: bool) -> str:
    """Return the path of a file for a client of this machine, its name for others."""
    return str(file) if is_near else file.name


DOCUMENTS: Final = (
    "interface.md",
    "rules.md",
    "expiry.md",
    "volatile.md",
    "identity.md",
    "clients.md",
    "webhooks.md",
    "functions.md",
    "command.md",
    "console.md",
    "serving.md",
    "browser.md",
    "run.md",
    "board.md",
    "moving-from-firebase.md",
    "embedding.md",
    "operating.md",
    "standby.md",
    "logging.md",
    "deployment.md",
    "proxies.md",
    "tracing.md",
    "monitoring.md",
    "archive.md",
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
    "console/now.webp",
    "console/playground.webp",
    "console/rules.webp",
    "console/table.webp",
    "console/tree.webp",
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
"""The files in `docs/` that are not pages."""

_PLACES_OF_PAGES: Final = {
    **{name: f"docs/{name}" for name in DOCUMENTS},
    **{name: name for name in BESIDE},
}
_PLACES_OF_FILES: Final = {
    **{name: f"docs/{name}" for name in DOCS_FILES},
    **{f"conf/{name}": f"conf/{name}" for name in SAMPLES},
}
_NAMES_OF_FILES: Final = {
    place: name for name, place in {**_PLACES_OF_PAGES, **_PLACES_OF_FILES}.items()
}
_SEARCH_SCRIPT: Final = "search.js"
_SEARCH_SECTIONS: Final = "search.json"
DOCUMENT_PATHS: Final = ("/.docs/", *(f"/.docs/{name}" for name in _PLACES_OF_PAGES))
DOCUMENT_FILE_PATHS: Final = tuple(
    f"/.docs/{name}" for name in (*_PLACES_OF_FILES, _SEARCH_SCRIPT, _SEARCH_SECTIONS)
)

_MARKDOWN_TYPE: Final = "text/markdown"
_MARKDOWN_HEADERS: Final = (
    (b"Content-Type", b"text/markdown; charset=utf-8"),
    (b"Vary", b"Accept"),
)
_TYPES_OF_FILES: Final = {".svg": b"image/svg+xml", ".webp": b"image/webp"}
_TEXT_TYPE: Final = b"text/plain; charset=utf-8"
_INDEX_SOURCE: Final = "README.md"
_INDEX_HEADING: Final = "## Documentation\n"
_OUTER_LINK: Final = re.compile(r"https?://.+")
_NOT_IN_ANCHOR: Final = re.compile(r"[^\w\- ]")
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
            return Response(308, b"", ((b"Location", b".docs/"), (b"Content-Type", _TEXT_TYPE)))
        source = self._read(name)
        if not prefers_html(request.headers, _MARKDOWN_TYPE):
            return Response(200, source, _MARKDOWN_HEADERS)
        return await self._make(name, self._render_in_steps)

    async def answer_file(self, request: IHttp1Request) -> Response:
        """Return what is at one of `DOCUMENT_FILE_PATHS`; raise `MissingDocument`."""
        name = _find_name(request)
        if name == _SEARCH_SCRIPT:
            script = read_static(_SEARCH_SCRIPT)
            return Response(200, script, _headers_of(b"text/javascript; charset=utf-8"))
        if name == _SEARCH_SECTIONS:
            return await self._make(name, self._list_sections)
        content_type = _TYPES_OF_FILES.get(posixpath.splitext(name)[1], _TEXT_TYPE)
        return Response(200, self._read(name), _headers_of(content_type))

    def _read(self, name: str) -> bytes:
        """Return a page or a file; for the empty name the index, which is a part of a page."""
        if name not in self._sources:
            place = {**_PLACES_OF_PAGES, **_PLACES_OF_FILES, "": _INDEX_SOURCE}[name]
            try:
                source = find_project_file(place).read_bytes()
            except OSError:
                raise MissingDocument from None
            self._sources[name] = source if name else _find_index(source.decode()).encode()
        return self._sources[name]

    async def _make(self, name: str, steps: Callable[[str], Iterator[Response | None]]) -> Response:
        """Return what is made for a name, once; `steps` yield None until it is done."""
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
        folder = posixpath.dirname(_PLACES_OF_PAGES.get(name, _INDEX_SOURCE))
        parts = []
        for section in split_sections(source):
            parts.append(render(section, folder))
            yield None
        title = source.partition("\n")[0].strip("# ")
        yield html_page(f"{title} · treedb", _NAVIGATION + "".join(parts), has_scripts=True)

    def _list_sections(self, _: str) -> Iterator[Response | None]:
        """Make the text that the search box searches: all sections of all pages."""
        found = []
        for name in _PLACES_OF_PAGES:
            source = self._read(name).decode()
            title = source.partition("\n")[0].strip("# ")
            for section in split_sections(source):
                found.append(json.dumps(_describe(name, title, section), ensure_ascii=False))
                yield None
        body = f"[{','.join(found)}]".encode()
        yield Response(200, body, _headers_of(b"application/json"))


def _find_name(request: IHttp1Request) -> str:
    """Return the name that a path below `/.docs/` has, as the dispatch reads it."""
    segments = [segment.decode() for segment in request.postpath if segment]
    return "/".join(segments[1:]).replace("/.json", ".json")


def _headers_of(content_type: bytes) -> tuple[Header, ...]:
    return ((b"Content-Type", content_type), *ALONE_HEADERS)


def _find_index(readme: str) -> str:
    """Return the list of all pages, which is a section of the README."""
    return next(each for each in split_sections(readme) if each.startswith(_INDEX_HEADING))


def _describe(name: str, title: str, section: str) -> Mapping[str, str]:
    heading, _, text = section.partition("\n")
    shown = heading.strip("# ") if heading.startswith("#") else ""
    anchor = find_anchor(shown)
    return {"page": name, "title": title, "heading": shown, "anchor": anchor, "text": text.strip()}


def split_sections(source: str) -> Iterator[str]:
    """Split Markdown before each heading; a line in a block of code is not a heading."""
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

    Links lead to where their targets are served; a link to what is not served becomes plain text.
    """
    markdown = _make_markdown()
    tokens = markdown.parse(section)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", find_anchor(following.content))
    for token in tokens:
        _turn_links(token.children or (), folder)
    rendered: Any = markdown.renderer.render(tokens, markdown.options, {})
    return str(rendered)


@cache
def _make_markdown() -> MarkdownIt:
    """Return the parser, loaded by the first page that is rendered: most daemons render none."""
    make: type[MarkdownIt] = namedAny("markdown_it.MarkdownIt")
    return make("commonmark", {"html": False}).enable("table")


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
    """Return a link relative to `/.docs/`; None if its target is not served there."""
    if _OUTER_LINK.fullmatch(link) or link.startswith("#"):
        return link
    path, mark, anchor = link.partition("#")
    name = _NAMES_OF_FILES.get(posixpath.normpath(posixpath.join(folder, path)))
    return None if name is None else f"{name}{mark}{anchor}"


_HEALTHY: Final = Response(200, b'{"status":"ok"}', (JSON_TYPE,))


def _ok(members: Mapping[str, object]) -> Response:
    """Return that all is well, and what else there is to say."""
    if not members:
        return _HEALTHY
    body = json.dumps({"status": "ok", **members}, separators=(",", ":"))
    return Response(200, body.encode(), (JSON_TYPE,))


_NO_ADMIN: Final = (
    *(BadToken, AuthRequired, NotAdmin, ProviderUnavailable, DeadlinePassed),
    *(IdentifyFailed, ForeignOrigin),
)


@attrs.frozen
class _Caller:
    """What a request to `/.health` addresses, None for nothing, and its token.

    `identity` is its sender, if the program that embeds the service names one.
    """

    name: DatabaseName | None
    token: str | None
    identity: Identity | None = None


class Health:
    """Answers whether the databases of a catalog work, at any host, whatever else a request has.

    `?live` asks whether the process answers; `?ready` whether it would serve a write: to the
    addressed database, or to every one if none is addressed. `?database` asks which database the
    request addresses: admins of its project may know, and in development mode all callers. Without
    any of these, the answer is about everything.

    Attributes:
        turns: the turns of the process; None if they are not measured.
        find_lag_ms: returns how old the data of a standby may be; None for what is not a standby.
        is_ending: whether the server is stopping.

    """

    def __init__(
        self,
        catalog: Catalog,
        authenticator: Authenticator,
        parser: RequestParser,
        users: Users | None = None,
    ) -> None:
        """Show reasons and turns to the callers that `authenticator` identifies as admins.

        `users` finds users who are logged in; None if only tokens identify senders.
        """
        self._users = users
        self._catalog = catalog
        self._authenticator = authenticator
        self._parser = parser
        self.turns: Turns | None = None
        self.find_lag_ms: Callable[[], int] | None = None
        self.is_ending = False

    async def check(self, request: IHttp1Request) -> Response:
        """Return the response to a GET; raise `Unavailable` if anything in question is wrong."""
        questions = {part.partition(b"=")[0] for part in request.uri.partition(b"?")[2].split(b"&")}
        if b"live" in questions:
            return _HEALTHY
        if self.is_ending:
            raise Unavailable(SHUTTING_DOWN)
        caller = attrs.evolve(self._parse(request), identity=await self._find_user(request))
        if b"database" in questions:
            return await self._name_database(caller)
        problems = await self._catalog.find_problems()
        if b"ready" in questions:
            self._catalog.check_accepts_writes()
            problems = [each for each in problems if _prevents_write(each, caller.name)]
        if not problems:
            return await self._show_turns(caller)
        raise Unavailable(await self._describe(problems, caller))

    def _parse(self, request: IHttp1Request) -> _Caller:
        """Return the caller; no part of a request is an error here."""
        try:
            location = self._parser.locate(request)
            return _Caller(location.name, find_token(request.headers, location.parameters))
        except (InvalidPath, InvalidQuery, LookupError):
            return _Caller(None, None)

    async def _name_database(self, caller: _Caller) -> Response:
        """Return the label of the database that a request addresses, if its caller may know it."""
        name = caller.name
        is_open = name is not None and self._catalog.rules(name.project).current is OPEN
        if name is None or not (is_open or await self._is_admin(name.project, caller)):
            return _HEALTHY
        body = json.dumps({"status": "ok", "database": name.label}, separators=(",", ":"))
        return Response(200, body.encode(), (JSON_TYPE,))

    async def _describe(self, problems: list[Problem], caller: _Caller) -> str:
        """Return what a caller may know: the problems of the projects of which it is an admin."""
        shown = []
        if caller.name is not None and await self._is_admin(caller.name.project, caller):
            # A problem without a project concerns them all.
            shown = [str(each) for each in problems if each.project in ("", caller.name.project)]
        return " ".join(shown) or "Not everything can be served at present."

    async def _show_turns(self, caller: _Caller) -> Response:
        """Return that all is well; to an admin also how long the turns of the process last."""
        is_unknown = caller.token is None and caller.identity is None
        if self.turns is None or caller.name is None or is_unknown:
            return _ok(self._standby())
        if not await self._is_admin(caller.name.project, caller):
            return _ok(self._standby())
        turns = self.turns.summarise()
        shown = {
            "count": turns.count,
            "p50_ms": _in_ms(turns.p50_s),
            "p99_ms": _in_ms(turns.p99_s),
            "longest_ms": _in_ms(turns.longest_s),
        }
        return _ok({**self._standby(), "turns": shown})

    def _standby(self) -> dict[str, object]:
        """Return what a standby says about itself."""
        find_lag_ms = self.find_lag_ms
        return {} if find_lag_ms is None else {"role": "standby", "lag_ms": find_lag_ms()}

    async def _find_user(self, request: IHttp1Request) -> Identity | None:
        """Return who is logged in; None if that cannot be found out."""
        try:
            return (
                None if self._users is None else await self._users.find(request, DEFAULT_TIMEOUT_S)
            )
        except _NO_ADMIN:
            return None

    async def _is_admin(self, project: str, caller: _Caller) -> bool:
        try:
            identity = await self._authenticator.identify(
                project, caller.token, None, DEFAULT_TIMEOUT_S, caller.identity
            )
        except _NO_ADMIN:
            return False
        return identity.is_admin


def _in_ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _prevents_write(problem: Problem, name: DatabaseName | None) -> bool:
    if not problem.refuses_writes:
        return False
    return name is None or (problem.project, problem.database) in (
        (name.project, name.database),
        (name.project, None),
        ("", None),
    )
