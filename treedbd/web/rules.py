"""The rules of a project, for admins: read, checked and replaced; their versions; trials.

`RulesHandlers` has a method for each resource below `/.settings/rules`. A trial evaluates rules,
those in force or a draft, for a request that its body describes (`parse_trial`): of any caller, for
any place, with any value. Nothing is written, and the caller of the trial need not be allowed to
write. It has the budget and the deadline of such a request: a read is evaluated at once, a write in
slices, on a state of the tree that is held meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
from twisted.internet.defer import CancelledError, Deferred

from treedbd.database.active_rules import ActiveRules, tag_of
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Caller, TooLarge, UnknownVersion, Write
from treedbd.database.rights import Authorisation, ReadRequest
from treedbd.http1.parser import Header, parse_coding
from treedbd.http1.request import IHttp1Request, read_body, size_of_body
from treedbd.limits import KIB, MAX_CLAIM_LEVELS, MAX_TRIAL_BYTES, MAX_UID_CHARACTERS, Limits
from treedbd.loop import Awaited, in_steps, pause
from treedbd.rules.document import RulesWarning
from treedbd.rules.evaluate import VALIDATE, Verdict, explanation
from treedbd.rules.ruleset import RuleSet
from treedbd.store.rules_versions import Origin, RulesVersion
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.path import format_path, make_place
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery, Json, Place
from treedbd.tree.value import compact
from treedbd.web.auth.identity import Identity, ReadOnlyToken
from treedbd.web.auth.jwt import exceeds_levels
from treedbd.web.reading import NO_RULES, explain_index, with_expiry
from treedbd.web.request import (
    QUERY_MEMBERS,
    DataRequest,
    PayloadTooLarge,
    ReadOptions,
    parse_choice,
    parse_read_options,
)
from treedbd.web.response import Response, json_response, text_response
from treedbd.web.write import (
    DECODED_AT_ONCE_BYTES,
    LARGE_BODY_BYTES,
    LARGE_BODY_NODES,
    decode,
    parse_body,
)

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

_MAX_NUMBER_DIGITS: Final = 18
_QUOTE: Final = ord('"')
_MEMBERS: Final = frozenset({"rules", "auth", "method", "path", "query", "value"})
_METHODS: Final = ("GET", "PUT", "PATCH", "POST", "DELETE")
_WITH_VALUE: Final = frozenset({"PUT", "PATCH", "POST"})
_ADMIN: Final = "admin"
"""What a trial has as `auth` for an admin, whom rules do not bind."""
_IN_STRING: Final = re.compile(rb'(?:[^"\\]{1,10000}+|\\.){0,100}+', re.DOTALL)
"""What is scanned of a string in one step."""
_SCANNED_BYTES: Final = 64 * KIB
"""What is scanned between strings in one step."""
_SHOWN_RULES: Final = 100
"""Rules of a trial that are shown from its beginning, and as many from its end."""
_TOO_LARGE: Final = (
    f"The value of a trial may have at most {LARGE_BODY_BYTES} bytes, and {LARGE_BODY_NODES} "
    "members and array items: try a part of it."
)


@attrs.frozen
class Trial:
    """A request that is tried: who sends what to which place, and a draft of rules.

    `draft` is None for the rules in force. `options` has the query of a read.
    """

    draft: str | None
    caller: Caller
    method: str
    place: Place
    options: ReadOptions
    value: Json

    def edit(self, push_key: str, limits: Limits) -> Edit:
        """Return what a write changes; raise `InvalidData` or `InvalidPath`."""
        place, longest = self.place, limits.string_bytes
        if self.method == "DELETE":
            return make_remove(place)
        if self.method != "PUT" and place.is_priority:
            raise InvalidPath("A priority can only be read, set and removed.")
        if self.method == "PATCH":
            return make_patch(place.path, self.value, longest)
        if self.method == "POST":
            place = make_place((*place.path, push_key))
        return make_put(place, self.value, longest)


class RulesHandlers:
    """Handles the requests for the rules of a project."""

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Serve the rules of the projects of `catalog`."""
        self._data, context = data, data.context
        self._catalog = catalog
        self._limits = context.settings.limits
        self._clock = context.clock
        self._slices = context.reads.slices

    async def rules(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Read, check or replace the rules."""
        deadline = self._clock.seconds() + wanted.timeout_s
        is_dry_run = parse_choice(wanted.parameters, "dryRun", "true", "false") == "true"
        is_strict = parse_choice(wanted.parameters, "format", "strict") is not None
        identity = await self._identify(wanted, database, is_read=is_dry_run)
        rules = database.rules
        if wanted.wants_explanation:
            return explain_without_rules(wanted, None if is_dry_run else identity)
        if wanted.method == b"PUT":
            rules.check_condition(wanted.condition)  # again when they are stored
            origin = None if is_dry_run else self._origin_of(identity)
            return await self._put(request, wanted, rules, origin, deadline)
        tag = _tag_headers(wanted, rules.current) if wanted.wants_etag else ()
        if is_strict:
            return json_response(wanted, await rules.as_json(deadline), *tag)
        return text_response(wanted, rules.current.text.encode(), *tag)

    async def _put(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        rules: ActiveRules,
        origin: Origin | None,
        deadline: float,
    ) -> Response | None:
        """Replace the rules, or only check what is sent: then there is no `origin`."""
        body, coding = read_body(request), parse_coding(request.headers)
        if coding is not None:
            body = decode(body, coding, self._limits.write_body_bytes)
        if origin is None:
            checking = Deferred.fromCoroutine(rules.check(body, deadline))
            found = await _unless_gone(request, checking, is_check=True)
            return None if found is None else _show_put(wanted, found, is_dry_run=True)
        putting = rules.put(body, deadline, origin, wanted.condition)
        put: RuleSet | None = await _unless_gone(request, putting)
        if put is None:
            return None
        has_tag = wanted.wants_etag or wanted.condition is not None
        return _show_put(wanted, put.warnings, *(_tag_headers(wanted, put) if has_tag else ()))

    async def versions(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """List the versions that are kept, or show the text of one."""
        number = _parse_version(wanted.parameters.get("version"))
        await self._identify(wanted, database)
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        rules = database.rules
        if number is not None:
            return text_response(wanted, await rules.read_version(number))
        return json_response(wanted, [_show_version(each) for each in await rules.list_versions()])

    async def trial(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Evaluate rules for the request that the body describes; nothing is written."""
        deadline = self._clock.seconds() + wanted.timeout_s
        await self._identify(wanted, database, is_read=True)
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        body = _read_trial(request)
        working = Deferred.fromCoroutine(self._try(database, body, wanted, deadline))
        shown = await _unless_gone(request, working, is_check=True)
        return None if shown is None else json_response(wanted, shown)

    async def _identify(
        self, wanted: DataRequest, database: Database, *, is_read: bool = False
    ) -> Identity:
        """Return the admin who sends a request, which `is_read` if it changes nothing."""
        what = "Access to the rules"
        identity = await self._data.identify_admin(wanted, database, what, is_read=is_read)
        refreshing = self._catalog.refresh(database.name.project)
        if refreshing is not None:
            await refreshing
        return identity

    def _origin_of(self, identity: Identity) -> Origin:
        uid = None if identity.auth is None else identity.auth.get("uid")
        return Origin(
            time=self._data.now_ms(),
            uid=uid[:MAX_UID_CHARACTERS] if isinstance(uid, str) else None,
            is_admin=True,
        )

    async def _try(
        self, database: Database, body: bytes, wanted: DataRequest, deadline: float
    ) -> dict[str, Json]:
        """Return the explanation of a trial; raise what `parse_trial` does, or `InvalidRules`."""
        parsing = in_steps(lambda: parse_trial(body, self._limits), self._clock.seconds)
        trial = await self._slices.run(parsing)
        rules = await _find_rules(database.rules, trial.draft, deadline)
        rights = database.rights.of_trial(rules)
        async with self._catalog.opened(database, wanted.timeout_s):
            if trial.method != "GET":
                key = database.push_ids.next(self._data.now_ms())
                edit = trial.edit(key, self._limits)
                write = Write(edit, self._data.now_ms(), trial.caller, deadline=deadline)
                return await self._slices.run(self._judge_write(database, rights, write))
            shown = self._judge_read(database, rights, trial)
            is_in_force = trial.draft is None
            return with_expiry(shown, database, trial.place.path) if is_in_force else shown

    def _judge_read(
        self, database: Database, rights: Authorisation, trial: Trial
    ) -> dict[str, Json]:
        """Evaluate a read; the state of an index is known for the rules in force only."""
        path, options = trial.place.path, trial.options
        read = ReadRequest(trial.caller, path, options.facts, self._data.now_ms)
        verdict = database.read(lambda nodes: rights.explain_read(nodes, read))
        shown = show_trial(verdict, trial.caller)
        if options.query is not None and trial.draft is None:
            shown["index"] = explain_index(database, path, options.query)
        return shown

    def _judge_write(
        self, database: Database, rights: Authorisation, write: Write
    ) -> Generator[Awaited, None, dict[str, Json]]:
        """Evaluate a write in slices, on a state that is held until then."""

        def judge() -> dict[str, Json]:
            nodes = database.hold()
            try:
                verdict = rights.explain_write(nodes, write, at_once=False)
            finally:
                nodes.close()
            return show_trial(verdict, write.caller)

        return in_steps(judge, self._clock.seconds)


def parse_trial(body: bytes, limits: Limits) -> Trial:
    """Return the trial in a body; raise `InvalidData`, `InvalidPath`, `InvalidQuery`, `TooLarge`.

    It is parsed in one step, so what it may hold is bounded; a draft, which is one string, may be
    longer than a value. Before that there are pauses.
    """
    _check_nodes(body)
    sent = parse_body(body, limits)
    if not isinstance(sent, dict):
        raise InvalidData("A trial is an object with the members method, path, auth and others.")
    unknown = sorted(sent.keys() - _MEMBERS)
    if unknown:
        raise InvalidData(f"A trial has no member '{unknown[0]}': {', '.join(sorted(_MEMBERS))}.")
    draft, method, path = sent.get("rules"), sent.get("method"), sent.get("path")
    if not isinstance(draft, str | None):
        raise InvalidData("rules must be the text of a document, or be left out.")
    if method not in _METHODS or not isinstance(method, str):
        raise InvalidData(f"method must be one of {', '.join(_METHODS)}.")
    if not isinstance(path, str):
        raise InvalidData("path must be a string, as in /users/ada.")
    if (method in _WITH_VALUE) is not ("value" in sent):
        needs = "needs a value" if method in _WITH_VALUE else "has no value"
        raise InvalidData(f"A {method} {needs}.")
    value = sent.get("value")
    if len(body) > LARGE_BODY_BYTES and len(compact(value)) > LARGE_BODY_BYTES:
        raise TooLarge(_TOO_LARGE)
    return Trial(
        draft=draft,
        caller=_parse_caller(sent.get("auth")),
        method=method,
        place=make_place([key for key in path.split("/") if key]),
        options=_parse_query(sent.get("query"), method, limits),
        value=value,
    )


def show_trial(verdict: Verdict, caller: Caller) -> dict[str, Json]:
    """Return the explanation of a verdict with all that rules saw, and the rule that decided.

    That is the last one that was evaluated, and of an allowed write the `.write`. The members
    `rule`, `rule_path`, `rule_line` and `column` are absent if no rule decided, as for an admin.
    Of many rules some are left out in the middle, and counted.
    """
    trace, left_out = verdict.trace, max(0, len(verdict.trace) - 2 * _SHOWN_RULES)
    if left_out:
        trace = (*trace[:_SHOWN_RULES], *trace[-_SHOWN_RULES:])
    shown = explanation(
        attrs.evolve(verdict, trace=trace),
        is_admin=caller.is_admin,
        auth=caller.auth,
        shows_all=True,
    )
    if left_out:
        shown["left_out"] = left_out
    trace = () if caller.is_admin else verdict.trace
    if verdict.allowed:
        trace = tuple(each for each in trace if each.kind != VALIDATE and each.result is True)
    decided = trace[-1] if trace else None
    if decided is None or (decided.result is True) is not verdict.allowed:
        return shown
    return shown | {
        "rule": decided.location,
        "rule_path": format_path(decided.path),
        "rule_line": decided.line,
        "column": decided.column,
    }


async def _find_rules(active: ActiveRules, draft: str | None, deadline: float) -> RuleSet:
    if draft is None:
        return active.current
    return await active.compile_draft(draft.encode("utf-8", "surrogatepass"), deadline)


def _read_trial(request: IHttp1Request) -> bytes:
    """Return the body of a trial; raise `PayloadTooLarge` or `InvalidData`."""
    if size_of_body(request) > MAX_TRIAL_BYTES:
        raise PayloadTooLarge(MAX_TRIAL_BYTES)
    body, coding = read_body(request), parse_coding(request.headers)
    return body if coding is None else decode(body, coding, DECODED_AT_ONCE_BYTES)


def _check_nodes(body: bytes) -> None:
    """Raise `TooLarge` if a body has more members and items than are parsed in one step.

    What is within strings does not count, so that a draft may be long. It is scanned with pauses.
    """
    at = nodes = 0
    while at < len(body):
        pause()
        quote = body.find(b'"', at, at + _SCANNED_BYTES)
        end = min(len(body), at + _SCANNED_BYTES) if quote < 0 else quote
        nodes += body.count(b",", at, end) + body.count(b"{", at, end) + body.count(b"[", at, end)
        if nodes > LARGE_BODY_NODES:
            raise TooLarge(_TOO_LARGE)
        at = end if quote < 0 else _end_of_string(body, end + 1)


def _end_of_string(body: bytes, at: int) -> int:
    """Return where the text after a string begins; the end for a string without one."""
    while at < len(body) and body[at] != _QUOTE:
        pause()
        found = _IN_STRING.match(body, at)
        if found is None or found.end() == at:
            return len(body)
        at = found.end()
    return at + 1


def _parse_caller(auth: Json) -> Caller:
    if auth == _ADMIN:
        return Caller(None, is_admin=True)
    if not isinstance(auth, dict | None) or exceeds_levels(auth, MAX_CLAIM_LEVELS):
        raise InvalidData('auth must be an object, null or "admin".')
    return Caller(auth)


def _parse_query(query: Json, method: str, limits: Limits) -> ReadOptions:
    """Return the options of a read, whose parameters are strings, or other JSON as it is."""
    if query is None:
        query = {}
    if not isinstance(query, dict):
        raise InvalidData('query must be an object, as in {"orderBy": "\\"age\\""}.')
    if query and method != "GET":
        raise InvalidQuery(f"A {method} has no query.")
    for name in query:
        if name not in QUERY_MEMBERS:
            raise InvalidQuery(f"A query has no parameter '{name}'.")
    parameters = {
        name: text if isinstance(text, str) else compact(text).decode()
        for name, text in query.items()
    }
    return parse_read_options(parameters, limits.where_children)


def _parse_version(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > _MAX_NUMBER_DIGITS:
        raise InvalidQuery("version must be the number of a version of the rules.")
    number = int(text)
    if not number:
        raise UnknownVersion(number)
    return number


async def _unless_gone(
    request: IHttp1Request, working: Deferred[Any], *, is_check: bool = False
) -> Any:
    """Wait for work; cancel it and return None if the client disconnects.

    Of a check it has also disconnected if it ends its sending direction: that is what the server
    sees of a client that closes its connection.
    """
    # Work for a client that has disconnected would only delay others.
    request.notifyFinish().addErrback(lambda _: working.cancel())
    request.has_own_timeout = is_check
    try:
        return await working
    except CancelledError:
        return None
    finally:
        request.has_own_timeout = False  # a slow reader of the answer is disconnected as any other


def _tag_headers(wanted: DataRequest, rules: RuleSet) -> tuple[Header, ...]:
    return ((b"ETag", wanted.dialect.etag(tag_of(rules))),)


def _show_put(
    wanted: DataRequest,
    found: tuple[RulesWarning, ...],
    *headers: Header,
    is_dry_run: bool = False,
) -> Response:
    """Return the response to rules that were put, or only checked, with what was found in them."""
    status: dict[str, Json] = {"status": "ok"}
    warnings = [each for each in found if is_dry_run or not each.is_advice]
    if warnings:
        status["warnings"] = [str(each) for each in warnings]
    if warnings and is_dry_run:
        status["positions"] = [
            {"line": each.position.line, "column": each.position.column, "message": each.text}
            for each in warnings
        ]
    return json_response(wanted, status, *headers)


def _show_version(version: RulesVersion) -> Json:
    origin, time = version.origin, None
    if origin.time is not None:
        time = datetime.fromtimestamp(origin.time / 1000, UTC).isoformat(timespec="milliseconds")
    return {
        "version": version.number,
        "time": time,
        "uid": origin.uid,
        "admin": origin.is_admin,
        "bytes": version.size,
        "is_current": version.is_current,
    }


def explain_without_rules(wanted: DataRequest, writer: Identity | None = None) -> Response:
    """Return the explanation of a request that no rule applies to.

    `writer` is the admin who sends one that may change something.
    """
    refusal = None
    if writer is not None and writer.is_read_only and wanted.is_write:
        refusal = str(ReadOnlyToken())
    auth = None if writer is None else writer.auth
    return json_response(wanted, explanation(NO_RULES, is_admin=True, auth=auth, refusal=refusal))
