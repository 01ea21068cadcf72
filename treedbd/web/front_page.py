"""The page at `/`, which a browser shows to who opens the address of the service.

In development mode it lists the databases, and has lines to paste that work; elsewhere it says no
more than what this is and how to address it. What comes from the request, such as its host, and
the names of databases are escaped where they are put into HTML, a line of a shell or JavaScript.
"""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

import attrs

from treedbd import __version__
from treedbd.database.catalog import Catalog
from treedbd.http1.headers import first, prefers_html
from treedbd.http1.interface import IHttp1Request
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN
from treedbd.web.addressing import NoDatabaseNamed
from treedbd.web.html_page import ICON, ICON_URL, html_page, read_template
from treedbd.web.options import DevelopmentFacts, WebOptions
from treedbd.web.origins import is_loopback, is_loopback_address
from treedbd.web.request import READING, RequestParser
from treedbd.web.response import Response, address_of

MAX_SHOWN_DATABASES: Final = 50
_MORE: Final = "A database comes into being at its first write, whatever its name."
PLACEHOLDER: Final = "PROJECT"
"""What a line to paste says where the user has to name a project."""

_DEVELOPMENT: Final = read_template("front_development.html")
_CONFIGURED: Final = read_template("front_configured.html")
_JAVASCRIPT: Final = read_template("lines.js")
_TOKENS: Final = (
    "The rules of a project say who may read and write. A token goes into the header "
    "<code>Authorization: Bearer …</code>."
)
_RULES_IN_FORCE: Final = f"<p>{_TOKENS} Where they deny, these lines need one.</p>"
_ADMIN_NOTE: Final = (
    '<p class="soft">Rules have been put, so these lines have the token of an admin, whom no rule '
    "binds.</p>"
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

    `host` has its port, `base` is the path under which the tree is mounted, with a slash at both
    ends. `name` is the database, None if none is named; `label` is that of `ns` if it has to be
    said, and `is_named_by_host` tells whether it need not be.
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
    """Answers browsers that ask for the root of the service."""

    def __init__(self, options: WebOptions, parser: RequestParser, catalog: Catalog) -> None:
        """Show the databases of `catalog` if `options` are those of development mode."""
        self._facts = options.development
        self._parser = parser
        self._catalog = catalog

    def is_wanted(self, request: IHttp1Request) -> bool:
        """Return whether a request for the root is one for the page."""
        return request.method in READING and prefers_html(request.headers, "application/json")

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the page; raise the error of a host or an `ns` that names no database."""
        visit = self._parse(request)
        if self._facts is None:
            page = _show_configured(visit)
        else:
            is_near = is_loopback_address(address_of(request))
            page = self._show_development(visit, self._facts, is_near=is_near)
        # It repeats the host and `ns` of the request, and may show a token: the length of such a
        # page, when it is compressed, says something about the token (BREACH).
        return attrs.evolve(page, may_be_encoded=False)

    async def answer_icon(self, _: IHttp1Request) -> Response:
        """Return the icon, which a browser asks for beside any page."""
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
            _is_secure(request, host),
            host,
            "".join(f"/{quote(each, safe='')}" for each in request.prepath if each) + "/",
            name,
            label,
            by_host is not None,
        )

    def _show_development(
        self, visit: _Visit, facts: DevelopmentFacts, *, is_near: bool
    ) -> Response:
        is_open = visit.name is None or self._catalog.rules(visit.name.project).current is OPEN
        token = None if is_open else facts.token
        certificate = _show_file(facts.certificate, is_near=is_near) if visit.is_secure else None
        body = ("-X", "PUT", "-d", '"world"')
        main = _DEVELOPMENT.substitute(
            icon=ICON_URL,
            version=escape(__version__),
            curl=escape(curl_line(_for_curl(visit).url("hello.json"), body, certificate, token)),
            javascript=escape(_print_javascript(visit, token), quote=False),
            note="" if is_open else _RULES_IN_FORCE if token is None else _ADMIN_NOTE,
            databases=self._list_databases(visit) if is_near else self._name_database(visit),
            more=self._describe_more() if is_near else _MORE,
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
        """Return the database that is addressed: which others there are, only admins may know."""
        if visit.name is None:
            return ""
        return f'<li><a href="{escape(visit.link_to(visit.name))}">{visit.name.label}</a></li>'

    def _describe_more(self) -> str:
        more = len(self._catalog.written) - MAX_SHOWN_DATABASES
        shown = f"There are {more} more. " if more > 0 else ""
        return f"{shown}{_MORE}"


def _show_configured(visit: _Visit) -> Response:
    target = visit.url(".json", {"shallow": "true"})
    main = _CONFIGURED.substitute(
        icon=ICON_URL,
        curl=escape(curl_line(target, (), None, None)),
        advice=_TOKENS if visit.name is not None else _NAME_PROJECT + _TOKENS,
        reference=escape(f"{visit.base}.docs/interface.md"),
        documentation=escape(f"{visit.base}.docs/"),
    )
    return html_page("treedb", main)


def _for_curl(visit: _Visit) -> _Visit:
    """Return the same database by another address if curl could not verify this one.

    OpenSSL takes no wildcard of a certificate for a name below a top-level one, as `*.localhost`.
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
    """Return whether the browser uses TLS, be it with a proxy.

    Browsers send `Sec-Fetch-Site` over TLS only, and to this machine (Fetch Metadata, section 4).
    """
    if request.isSecure():
        return True
    return b"sec-fetch-site" in request.headers and not is_loopback(f"http://{host}")


def _show_file(file: pathlib.Path, *, is_near: bool) -> str:
    """Return where a file is, to a client of this machine; to others only its name."""
    return str(file) if is_near else file.name
