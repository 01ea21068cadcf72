"""Resources of admins: the databases of a project and their activity, the change log.

`AdminHandlers` has a method for each, and those for the rules, which are in `rules`.
`/.settings/log.json` shows who wrote where and when (`print_log`). It shows `limitToFirst` entries,
beginning after the number `startAfter`, by default so that the newest writes are shown; with
`format=export` also the bodies that the log has kept. A long answer ends early: the next request
continues after its last number.
"""

from __future__ import annotations

import pathlib
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from treedbd import __version__
from treedbd.audit.lines import describe_caller
from treedbd.audit.search import (
    MAX_PAGE_LINES,
    BadPosition,
    BadTime,
    NoAudit,
    Page,
    Search,
    find_page,
    parse_time,
)
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Unavailable
from treedbd.errors import in_one_line
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB, MAX_TOKEN_REQUEST_BYTES, MIB
from treedbd.names import DatabaseName
from treedbd.store.changelog import LoggedEntry, describe_entry
from treedbd.store.engine import LogEntry
from treedbd.store.nodes import Nodes
from treedbd.tree.path import format_path
from treedbd.tree.query import parse_limit
from treedbd.tree.types import PRIORITY, InvalidQuery, Json
from treedbd.tree.value import compact
from treedbd.web.activity import Activity, ProjectActivity
from treedbd.web.auth.identity import ANONYMOUS, Identity, ReadOnlyToken, TokenRequired
from treedbd.web.auth.jwt import LEEWAY_S
from treedbd.web.auth.minting import MadeToken, TokenRequest, parse_token_request
from treedbd.web.listeners import SocketRegistry
from treedbd.web.request import (
    DataRequest,
    Dialect,
    Parameters,
    find_single_parameter,
    parse_choice,
)
from treedbd.web.response import Response, json_response, text_response
from treedbd.web.rules import RulesHandlers, explain_without_rules
from treedbd.web.write import read_small_body

if TYPE_CHECKING:
    from treedbd.web.inspection import Inspection
    from treedbd.web.resource import DataHandlers

DEFAULT_ENTRIES: Final = 100
MAX_ENTRIES: Final = 1000
ANSWER_BYTES: Final = 8 * MIB
"""Bytes of entries beyond which an answer ends."""
STEP_BYTES: Final = 256 * KIB
"""Bytes of entries that are read in one step."""
_MAX_NUMBER_DIGITS: Final = 18

MAX_SHOWN: Final = 1000
"""Databases of a project whose activity is shown."""
TOKEN_FIELDS: Final = ("project", "uid", "by", "expires")
"""The fields in the log of a token that was made."""
_log = Logger()


class AdminHandlers:
    """Handles the requests that only an admin of a project may send.

    Attributes:
        requests, connections, profile: the handlers of `Inspection`.

    """

    def __init__(
        self,
        data: DataHandlers,
        catalog: Catalog,
        sockets: SocketRegistry,
        activity: Activity,
        *,
        inspection: Inspection,
    ) -> None:
        """Serve `catalog`; `activity` counts what clients do with its databases."""
        self._data, context = data, data.context
        self._catalog = catalog
        self._slices = context.reads.slices
        self._authenticator = context.authenticator
        self._audit_folder = context.settings.audit.directory
        self._reactor: Any = context.clock
        self._is_development = context.settings.development
        of_rules = RulesHandlers(data, catalog)
        self.rules: Final = of_rules.rules
        self.rules_versions: Final = of_rules.versions
        self.rules_trial: Final = of_rules.trial
        self._activity = activity
        self._sockets = sockets
        self._inspection = inspection
        self.requests, self.connections = inspection.requests, inspection.connections
        self.profile = inspection.profile

    async def databases(
        self, _: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List the databases of a project."""
        await self._data.identify_admin(wanted, database, "Access to the list of databases")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        await self._refresh(database)
        names = self._catalog.names(database.project)
        return json_response(wanted, [{"name": each.label} for each in names])

    async def activity(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Show what clients do with the databases of a project."""
        await self._data.identify_admin(wanted, database, "Access to the activity of a project")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        await self._refresh(database)
        names = self._catalog.names(database.project)[:MAX_SHOWN]
        stored = await self._activity.measure(names)
        activity = await self._activity.of(database.project.name)
        shown: list[Json] = []
        for name, stored_bytes in zip(names, stored, strict=True):
            requests, seconds = activity.totals.get(name.label, (0, 0.0))
            shown.append(
                {
                    "name": name.label,
                    "bytes": stored_bytes,
                    "streams": self._data.streams.count_of(name),
                    "sockets": self._sockets.count_of(name),
                    "requests": requests,
                    "busy_ms": round(seconds * 1000),
                }
            )
        return json_response(
            wanted,
            {
                "for_s": round(activity.for_s, 3),
                "databases": shown,
                "slowest": _show_slowest(activity),
                "series": await self._inspection.show_series(database.project.name),
            },
        )

    async def log(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """List the writes that the change log of a database has kept."""
        await self._data.identify_admin(wanted, database, "Access to the change log")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        layout = wanted.dialect if wanted.print == "pretty" else None
        async with self._catalog.opened(database, wanted.timeout_s):
            steps = print_log(database, wanted.parameters, layout)
            return text_response(wanted, await self._slices.run(steps))

    async def audit(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List what the audit files of this machine have of a database."""
        await self._data.identify_admin(wanted, database, "Access to the audit")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        folder, parameters = self._audit_folder, wanted.parameters
        if folder is None:
            raise NoAudit
        search = parse_search(request.uri, database.name)
        begin, limit = parameters.get("startAfter"), parse_limit(parameters, "limitToFirst")
        most = min(limit or DEFAULT_ENTRIES, MAX_PAGE_LINES)
        page = await deferToThreadPool(
            self._reactor,
            self._reactor.getThreadPool(),
            lambda: _find_page(folder, search, begin, most),
        )
        layout = wanted.dialect if wanted.print == "pretty" else None
        return text_response(wanted, await self._slices.run(_print_page(page, layout)))

    async def compact(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Give free space of a database back to the file system."""
        admin = await self._data.identify_admin(wanted, database, "Compacting a database")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, admin)
        async with self._catalog.opened(database, wanted.timeout_s):
            before, after = await database.compact()
        return json_response(wanted, {"before": before, "after": after})

    # Callers and tokens.

    async def caller(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Show a caller with a token who he is, and what the service is."""
        if wanted.wants_explanation:
            await self._data.identify_admin(wanted, database, "An explanation")
            return explain_without_rules(wanted)
        identity = await self._data.identify(wanted, database)
        if identity.source == ANONYMOUS.source:
            raise TokenRequired("To see who the caller is")
        ends = identity.expires_at
        shown: dict[str, Json] = {
            "project": database.project.name,
            "database": database.name.label,
            "uid": identity.uid,
            "admin": identity.is_admin,
            "read_only": identity.is_read_only,
            "token_id": identity.token_id,
            "expires": None if ends is None else _show_time(ends - LEEWAY_S),
            "version": __version__,
            "development": self._is_development,
        }
        return json_response(wanted, shown)

    async def tokens(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Make a token for a user, or one that replaces the admin's own."""
        what = "Making a token"
        admin = await self._data.identify_admin(wanted, database, what, is_read=True)
        wanted.check_unconditional()
        asked = parse_token_request(read_small_body(request, MAX_TOKEN_REQUEST_BYTES))
        if wanted.wants_explanation:
            return explain_without_rules(wanted, None if asked is None else admin)
        if asked is not None and admin.is_read_only:
            raise ReadOnlyToken
        project = database.project.name
        made = self._authenticator.make_token(project, asked, wanted.token)
        _log_token(project, asked, admin, made)
        audit = self._data.context.audit
        if audit is not None:
            whose = None if asked is None else str(asked.claims["uid"])
            audit.made(request, database.name, admin, made, whose)
        return json_response(wanted, {"token": made.text, "expires": _show_time(made.expires_at)})

    async def _refresh(self, database: Database) -> None:
        refreshing = self._catalog.refresh(database.name.project)
        if refreshing is not None:
            await refreshing


def parse_search(uri: bytes, name: DatabaseName) -> Search:
    """Return the search in the query of a target, in one database; raise `InvalidQuery`."""
    since, until = find_single_parameter(uri, "since"), find_single_parameter(uri, "until")
    try:
        return Search(
            since=None if since is None else parse_time(since),
            until=None if until is None else parse_time(until),
            path=find_single_parameter(uri, "path"),
            uid=find_single_parameter(uri, "uid"),
            project=name.project,
            database=name.database,
        )
    except BadTime as error:
        raise InvalidQuery(str(error)) from None


def _find_page(folder: pathlib.Path, search: Search, begin: str | None, most: int) -> Page:
    """Return a page of the audit; none of it was written yet if there is no directory."""
    try:
        return find_page(folder, search, begin, most)
    except FileNotFoundError:
        return Page([], None)
    except BadPosition as error:
        raise InvalidQuery(f"startAfter: {error}") from None
    except OSError as error:
        raise Unavailable(f"The audit cannot be read: {error.strerror}.") from None


def _print_page(page: Page, layout: Dialect | None) -> Generator[None, None, bytes]:
    """Print a page in steps."""
    chunks: Iterable[bytes] = (
        b'{"lines":[',
        *(b"," + line if at else line for at, line in enumerate(page.lines)),
        b'],"next":' + compact(page.next) + b"}",
    )
    printed = []
    for chunk in chunks if layout is None else layout.indent(chunks):
        printed.append(chunk)
        yield
    return b"".join(printed)


def _log_token(project: str, asked: TokenRequest | None, admin: Identity, made: MadeToken) -> None:
    """Log for whom a token was made, until when, and by whom; never the token."""
    by = (admin.auth or {}).get("uid")
    whose = by if asked is None else asked.claims["uid"]
    fields = zip(TOKEN_FIELDS, (project, whose, by, _show_time(made.expires_at)), strict=True)
    shown = {name: in_one_line(text) for name, text in fields if isinstance(text, str)}
    what = "A token was made" if asked is not None else "The token of an admin was renewed"
    _log.info("{what}.", what=what, treedb_fields=shown)


def _show_time(seconds: float) -> str:
    """Return a time in seconds since 1970 as in `2026-11-28T18:00:00Z`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _show_slowest(activity: ProjectActivity) -> Json:
    """Return the slowest requests of a project, the slowest first."""
    return [
        {
            "ms": round(seconds * 1000, 1),
            "method": method,
            "name": label,
            "path": path,
            "status": status,
            "ago_s": round(ago_s),
        }
        for seconds, ago_s, label, method, path, status in activity.slowest
    ]


def print_log(
    database: Database, parameters: Parameters, layout: Dialect | None
) -> Generator[None, None, bytes]:
    """Print the requested entries in steps, oldest first; raise `InvalidQuery`.

    A `layout` indents them.
    """
    entries = _print_entries(database, parameters)
    chunks = entries if layout is None else layout.indent(entries)
    printed = []
    for chunk in chunks:
        printed.append(chunk)
        yield
    return b"".join(printed)


def _print_entries(database: Database, parameters: Parameters) -> Iterator[bytes]:
    """Print entries, one in each step; some chunks are empty."""
    limit = min(parse_limit(parameters, "limitToFirst") or DEFAULT_ENTRIES, MAX_ENTRIES)
    with_body = parse_choice(parameters, "format", "export") is not None
    after = _parse_number(parameters.get("startAfter"))
    if after is None:
        after = max(0, database.read(lambda nodes: nodes.rows.sequence()) - limit)
    count = size = 0
    separator = b"["
    while count < limit and size < ANSWER_BYTES:
        entries = _read_entries(database, after, limit - count)
        if not entries:
            break
        yield b""
        for entry in entries:
            yield separator + compact(_show_entry(describe_entry(entry), with_body=with_body))
            separator = b","
            size += len(entry.content) if with_body else 0
        count += len(entries)
        after = entries[-1].sequence
    yield b"]" if count else b"[]"


def _read_entries(database: Database, after: int, count: int) -> list[LogEntry]:
    def read(nodes: Nodes) -> list[LogEntry]:
        found = []
        size = 0
        for entry in nodes.rows.entries(after):
            found.append(entry)
            size += len(entry.content)
            if len(found) == count or size >= STEP_BYTES:
                break
        return found

    return database.read(read)


def _show_entry(entry: LoggedEntry, *, with_body: bool) -> Json:
    path, is_priority = entry.place
    is_removal = entry.has_body and entry.sent is None
    shown: dict[str, Any] = {
        "seq": entry.sequence,
        "time": datetime.fromtimestamp(entry.time / 1000, UTC).isoformat(timespec="milliseconds"),
        **describe_caller(entry.writer),
        "method": "DELETE" if is_removal else entry.method.upper(),
        "path": format_path((*path, PRIORITY) if is_priority else path),
        "size": entry.size,
    }
    origin = entry.writer.origin
    if origin is not None:
        shown |= {"from": origin.address or None, "token_id": origin.token, "means": origin.means}
    if with_body:
        shown["kept"] = entry.has_body
        shown["data"] = entry.sent
    return shown


def _parse_number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > _MAX_NUMBER_DIGITS:
        raise InvalidQuery("startAfter must be the number of a write, as the log shows it.")
    return int(text)
