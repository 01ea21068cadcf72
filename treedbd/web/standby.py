"""Resources for standbys (`treedbd.standby`), of admins of the project that is followed.

`/.standby/stream.json` is the stream of a standby, `/.standby/reached.json` says where it is, and
`/.standby/base` has a base of one database. `/.standby/term.json` says to everyone whether this
daemon is the first, and in which term: that is how daemons find out that one was promoted;
`/.standby/superseded.json` says so to this one, and `/.standby/promote.json` promotes it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import orjson
from twisted.internet.defer import Deferred

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import LogPosition
from treedbd.database.requests import Unavailable, UnknownDatabase
from treedbd.database.runtime import Runtime
from treedbd.http1.parser import CutOff, Header, parse_coding
from treedbd.http1.request import IHttp1Request, read_body, size_of_body
from treedbd.limits import MIB
from treedbd.names import DatabaseName
from treedbd.standby.bases import BaseStream
from treedbd.standby.office import Office
from treedbd.standby.sender import (
    CannotBeFollowed,
    Sender,
    StandbyRequest,
    StandbyStream,
    clock_ms,
    db_of,
)
from treedbd.standby.term import Term
from treedbd.store.engine import CannotOpenStore
from treedbd.tree.types import InvalidData, InvalidQuery
from treedbd.web.auth.identity import Identity, ReadOnlyToken, require_admin
from treedbd.web.auth.jwt import BadToken
from treedbd.web.request import DataRequest, PayloadTooLarge, find_parameter
from treedbd.web.response import JSON_TYPE, Response, counted_address_of, json_response
from treedbd.web.rules import explain_without_rules
from treedbd.web.write import decode

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

MAX_BODY_BYTES: Final = 16 * MIB
"""Bytes of what a standby says about itself."""
MAX_URL_CHARACTERS: Final = 2048
BASES_AT_ONCE: Final = 8
"""Bases that are read at once, each by a process."""
MAX_TERM: Final = 2**53
_ID: Final = re.compile("[0-9a-f]{8,64}")
_MAX_SEQUENCE: Final = 2**62
_LINES: Final[Header] = (b"Content-Type", b"application/x-ndjson")
_BASE: Final[Header] = (b"Content-Type", b"application/octet-stream")
_NOT_HERE: Final = (
    "A standby can follow a daemon that keeps its data in files; with PostgreSQL, use the standbys "
    "of PostgreSQL."
)
_NOT_OF_ALL: Final = (
    "This concerns all projects of the server: tokens must have that of an admin of each other "
    "project."
)


class ListedStream(StandbyStream):
    """The stream of a standby as the registry of streams knows it."""

    def __init__(
        self,
        asked: StandbyRequest,
        *,
        request: IHttp1Request,
        catalog: Catalog,
        runtime: Runtime,
        office: Office,
        is_shared: bool,
        data: DataHandlers,
        name: DatabaseName,
        identity: Identity,
    ) -> None:
        """`name` is the database that the request addresses, `identity` that of the standby."""
        super().__init__(
            asked,
            request=request,
            catalog=catalog,
            runtime=runtime,
            office=office,
            is_shared=is_shared,
        )
        self.name: Final = name
        self.identity: Final = identity
        self.address: Final = counted_address_of(request)
        self._streams = data.streams
        data.streams.check(name, self.address, identity)
        data.streams.add(self)

    def note_paused(self, *, is_paused: bool) -> None:
        """Note whether the standby keeps up."""
        if is_paused:
            self._streams.pause(self)
        else:
            self._streams.resume(self)

    def note_closed(self) -> None:
        """Remove the stream."""
        self._streams.remove(self)

    def keep_alive(self) -> None:
        """Do nothing: the time is sent each second."""

    def retry(self) -> None:
        """Do nothing: it is never postponed."""

    def lose_identity(self) -> None:
        """End: the token has expired, or is no longer trusted."""
        self.end()

    def revoke(self) -> None:
        """Go on: it shows the project, of which one database is deleted."""

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        self.cut_off(reason)


class StandbyHandlers:
    """Handles the requests of standbys.

    Attributes:
        office: the term of this daemon; None if nothing can follow it.
        promote: makes this daemon the first, if it is a standby; returns what its admin is shown.
            It is called with whether that is done although the first may be serving.
        describe: returns what an admin may know of a standby.

    """

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve `catalog`; nothing can follow it before `attach`."""
        self._data, self._catalog = data, catalog
        self._authenticator = data.context.authenticator
        self.office: Office | None = None
        self.promote: Callable[[bool], Awaitable[dict[str, Any]]] | None = None
        self.describe: Callable[[], dict[str, Any]] | None = None
        self._sender: Sender | None = None
        self._runtime: Runtime | None = None
        self._is_shared = False
        self._projects: frozenset[str] = frozenset()
        self._bases = 0

    def attach(
        self, office: Office, runtime: Runtime, projects: Iterable[str], *, is_shared: bool
    ) -> None:
        """Allow standbys to follow; other processes write the databases too if it `is_shared`.

        What concerns the whole server requires tokens of admins of all `projects`.
        """
        self.office, self._runtime, self._is_shared = office, runtime, is_shared
        self._projects = frozenset(projects)
        self._sender = Sender(self._catalog, runtime)

    async def stream(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Begin the stream of a standby."""
        identity = await self._identify(wanted, database, "Following a project")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        office, sender, runtime = self._followed()
        if office.is_standby:
            raise CannotBeFollowed(f"This is a standby of {office.term.first_url}: follow that.")
        json = _read_json(request)
        asked = _parse_request(json, database)
        refusal = await self._meet(asked.standby, json, wanted, database)
        if refusal is not None or not _is_connected(request):
            return refusal
        stream = ListedStream(
            asked,
            request=request,
            catalog=self._catalog,
            runtime=runtime,
            office=office,
            is_shared=self._is_shared,
            data=self._data,
            name=database.name,
            identity=identity,
        )
        headers = self._data.context.writer.common_headers(request, no_store=True)
        request.start(200, (_LINES, *headers))
        request.has_own_timeout = True
        hello = {**office.describe(), "now": clock_ms(), "project": asked.project}
        sender.open(stream, hello)
        return None

    async def reached(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Record where a standby is."""
        identity = await self._identify(wanted, database, "Following a project")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        office, sender, _runtime = self._followed()
        await sender.reached(_parse_request(_read_json(request), database))
        return json_response(wanted, {"term": office.term.term, "now": clock_ms()})

    async def base(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Send a base of one database of a project."""
        identity = await self._identify(wanted, database, "Access to a base")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        runtime = self._followed()[2]
        name = self._find_name(request, database)
        try:
            file = self._catalog.file_of(name)
        except CannotOpenStore:
            raise UnknownDatabase(name, is_project_known=True) from None
        if self._bases >= BASES_AT_ONCE:
            raise Unavailable("As many bases are being read as may be; try again later.")
        self._bases += 1
        request.notifyFinish().addBoth(self._forget_base)
        headers = self._data.context.writer.common_headers(request, no_store=True)
        request.start(200, (_BASE, *headers))
        BaseStream(request, self._data.context.clock).open(file, db_of(name), runtime.now_ms())
        return None

    def _forget_base(self, _: object) -> None:
        self._bases -= 1

    async def term(self, _: IHttp1Request) -> Response:
        """Say which term this is."""
        office = self._followed()[0]
        return Response(200, orjson.dumps(office.describe()), (JSON_TYPE,))

    async def superseded(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Learn that another daemon was promoted."""
        identity = await self._identify(wanted, database, "Superseding a server")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        office = self._followed()[0]
        json = _read_json(request)
        await self._require_all(json, wanted, database)
        if not await office.supersede(_parse_term(json), _parse_url(json), _parse_id(json)):
            return _conflict(office, _describe(office.term))
        return json_response(wanted, office.describe())

    async def promotion(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Make this standby the first."""
        identity = await self._identify(wanted, database, "Promoting a standby")
        if wanted.wants_explanation:
            return explain_without_rules(wanted, identity)
        if self.promote is None:
            raise CannotBeFollowed("This server is not a standby.")
        json = _read_json(request) if size_of_body(request) else {}
        is_forced = json.get("force", False)
        if not isinstance(is_forced, bool):
            raise InvalidData("force must be true or false.")
        await self._require_all(json, wanted, database)
        return json_response(wanted, await self.promote(is_forced))

    async def state(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Show an admin whether this is a standby, and how it follows."""
        await self._identify(wanted, database, "Access to the state of a standby")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        office = self._followed()[0]
        shown = office.describe() if self.describe is None else self.describe()
        return json_response(wanted, shown)

    def _followed(self) -> tuple[Office, Sender, Runtime]:
        """Return what serves standbys; raise `CannotBeFollowed` if nothing can."""
        if self.office is None or self._sender is None or self._runtime is None:
            raise CannotBeFollowed(_NOT_HERE)
        return self.office, self._sender, self._runtime

    async def _identify(self, wanted: DataRequest, database: Database, what: str) -> Identity:
        """Return the admin of the project; the database that is addressed need not exist."""
        identity = await self._authenticator.identify(
            database.name.project, wanted.token, None, wanted.timeout_s, wanted.identity
        )
        require_admin(identity, what)
        if identity.is_read_only:
            raise ReadOnlyToken
        return identity

    async def _require_all(
        self, json: dict[str, Any], wanted: DataRequest, database: Database
    ) -> None:
        """Raise `CannotBeFollowed` if `tokens` lacks that of an admin of another project."""
        if not await self._is_admin_of_all(json, wanted, database):
            raise CannotBeFollowed(_NOT_OF_ALL)

    async def _is_admin_of_all(
        self, json: dict[str, Any], wanted: DataRequest, database: Database
    ) -> bool:
        """Return whether `tokens` in a body has those of admins of all other projects."""
        tokens = json.get("tokens", {})
        if not isinstance(tokens, dict):
            raise InvalidData("tokens must be an object.")
        for project in sorted(self._projects - {database.name.project}):
            token = tokens.get(project)
            if not isinstance(token, str):
                return False
            try:
                found = await self._authenticator.identify(
                    project, token, None, wanted.timeout_s, None
                )
            except BadToken:
                return False
            if not found.is_admin or found.is_read_only:
                return False
        return True

    async def _meet(
        self, standby: str, json: dict[str, Any], wanted: DataRequest, database: Database
    ) -> Response | None:
        """Remember a standby; return the refusal of one that has followed a later first.

        Only an admin of all projects is believed what concerns all of them.
        """
        office = self._followed()[0]
        url, term = _parse_url(json), _parse_term(json)
        is_of_all = await self._is_admin_of_all(json, wanted, database)
        if term > office.term.term:
            return await self._yield_to(office, standby if is_of_all else None, term)
        if is_of_all:
            await office.meet(standby, url)
        return None

    async def _yield_to(self, office: Office, standby: str | None, term: int) -> Response:
        """Refuse a standby that has followed a later first; one that followed this one is known."""
        if any(each.id == standby for each in office.term.peers):
            await office.supersede(term, None)
        return _conflict(
            office, "The standby has followed a first that was promoted after this one."
        )

    def _find_name(self, request: IHttp1Request, database: Database) -> DatabaseName:
        """Return the database that `db` names; raise `InvalidQuery` or `UnknownDatabase`."""
        given = find_parameter(request.uri, b"db")
        if len(given) != 1:
            raise InvalidQuery("db must name one database of the project.")
        name = DatabaseName(database.name.project, given[0])
        if given[0] not in self._catalog.created_of(name.project):
            raise UnknownDatabase(name, is_project_known=True)
        return name


def _conflict(office: Office, reason: str) -> Response:
    """Return the refusal of what contradicts the term of this daemon, which it shows."""
    body = {"error": "conflict", "message": reason, **office.describe()}
    return Response(409, orjson.dumps(body), (JSON_TYPE,))


def _describe(term: Term) -> str:
    """Return which daemon is the first, as a sentence."""
    if term.role == "first":
        return f"This is the first, in the term {term.term}."
    where = term.first_url or "Another server"
    return f"{where} was promoted in its place already, in the term {term.term}."


def _is_connected(request: IHttp1Request) -> bool:
    """Return whether the client has not disconnected."""
    finished: Deferred[None] = request.notifyFinish()
    is_connected = not finished.called
    finished.addErrback(lambda _: None)
    return is_connected


def _read_json(request: IHttp1Request) -> dict[str, Any]:
    """Return the JSON object in a body; raise `PayloadTooLarge` or `InvalidData`."""
    if size_of_body(request) > MAX_BODY_BYTES:
        raise PayloadTooLarge(MAX_BODY_BYTES)
    body, coding = read_body(request), parse_coding(request.headers)
    try:
        json = orjson.loads(body if coding is None else decode(body, coding, MAX_BODY_BYTES))
    except ValueError:
        raise InvalidData("The body must be a JSON object.") from None
    if not isinstance(json, dict):
        raise InvalidData("The body must be a JSON object.")
    return json


def _parse_request(json: dict[str, Any], database: Database) -> StandbyRequest:
    """Return what a standby says about itself; raise `InvalidData`."""
    standby, project = json.get("standby"), database.name.project
    if not isinstance(standby, str) or _ID.fullmatch(standby) is None:
        raise InvalidData("standby must be an id of hexadecimal digits.")
    given = json.get("positions", {})
    if not isinstance(given, dict):
        raise InvalidData("positions must be an object.")
    positions = {}
    for db, position in given.items():
        of, _, name = db.partition("/")
        if of == project and name:
            positions[name] = _parse_position(db, position)
    return StandbyRequest(standby, project, positions)


def _parse_position(db: str, position: Any) -> LogPosition:
    try:
        sequence, op_id = position
        if type(sequence) is int and 0 <= sequence < _MAX_SEQUENCE:
            return LogPosition(sequence, bytes.fromhex(op_id))
    except (ValueError, TypeError):
        pass
    raise InvalidData(f'The position of {db} must be a number and an id, as in [12, "0af3"].')


def _parse_url(json: dict[str, Any]) -> str | None:
    url = json.get("url")
    if url is None:
        return None
    is_url = isinstance(url, str) and url.startswith(("http://", "https://"))
    if not is_url or len(url) > MAX_URL_CHARACTERS or not url.isprintable():
        raise InvalidData("url must begin with http:// or https://.")
    return str(url)


def _parse_id(json: dict[str, Any]) -> str:
    """Return the id of the daemon that was promoted; "" if it does not say it."""
    given = json.get("id", "")
    if not isinstance(given, str) or (given and _ID.fullmatch(given) is None):
        raise InvalidData("id must have hexadecimal digits.")
    return given


def _parse_term(json: dict[str, Any]) -> int:
    term = json.get("term")
    if type(term) is not int or not 0 < term <= MAX_TERM:
        raise InvalidData("term must be a number from 1.")
    return term
