"""Concurrent clients that read, write, swap, add and push, and record all of it in a history.

Each client is a thread with a connection to each base URL; for every operation it chooses one of
them, and now and then opens a new connection, so that it meets all processes that serve a URL.
Whatever is set is unique, so a value tells which operation it is of.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from tests.history import UNSEEN, BadHistory, History, Kind, Operation, Outcome, Unseen, Value
from tests.rest import reachable_host

PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.05
TAG: Final = {"X-TreeDB-ETag": "true"}
RECONNECTING: Final = 0.02
"""The probability that a client opens a new connection before an operation."""

METHODS: Final[Mapping[Kind, str]] = {
    "read": "GET",
    "write": "PUT",
    "swap": "PUT",
    "add": "PUT",
    "push": "POST",
}
ACTIONS: Final = ("read", "write", "swap", "swap", "count", "add", "push")


class Unexpected(AssertionError):
    """A response that no request of the clients may have."""


class Unreachable(OSError):
    """No connection could be made, so nothing was sent."""


@attrs.frozen
class Plan:
    """What the clients do; `operations` is how many that are not refused, of all clients together.

    All registers are below the path `root`. Each URL of a request ends with `query`.
    """

    operations: int = 1000
    clients: int = 8
    registers: int = 4
    counters: int = 2
    root: str = "history"
    query: str = ""
    seed: int = 1

    def target(self, path: str) -> str:
        """Return the target of a request for a path."""
        return f"{path}.json?{self.query}" if self.query else f"{path}.json"

    @property
    def end(self) -> str:
        """The register that is set last."""
        return f"/{self.root}/end"

    @property
    def log(self) -> str:
        """The path that is pushed to."""
        return f"/{self.root}/log"


def classify(status: int, body: Any) -> Outcome:
    """Return the outcome that the status and the JSON of a response say; raise `Unexpected`."""
    if status == 200:
        return Outcome.OK
    if status == 412:
        return Outcome.MISMATCH
    if status == 504 and isinstance(body, dict) and body.get("error") == "in_doubt":
        return Outcome.UNKNOWN
    if status in (429, 503, 504):
        return Outcome.REFUSED
    raise Unexpected(f"{status} {body!r}")


def fetch(url: str, target: str) -> Any:
    """Return the JSON at a target, read over a new connection."""
    connection = _Connection(url)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        body = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise Unexpected(f"{response.status} {body!r}")
    return body


class _Connection(HTTPConnection):
    """A connection to a URL, also to one of a host of this machine that no resolver knows."""

    def __init__(self, url: str) -> None:
        super().__init__(urlsplit(url).netloc, timeout=PATIENCE_S)

    def connect(self) -> None:
        self.sock = socket.create_connection((reachable_host(self.host), self.port), PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Caller:
    """Sends the operations of one client and records them.

    `urls` may change meanwhile: a caller reads it for each operation.
    """

    def __init__(
        self, client: int, urls: Sequence[str], plan: Plan, history: History, seed: int = 0
    ) -> None:
        self.client = client
        self.tag: str | None = None
        """The entity tag in the last response."""
        self._urls = urls
        self._plan = plan
        self._history = history
        self._random = random.Random(seed)
        self._connections: dict[str, HTTPConnection] = {}

    def call(
        self,
        kind: Kind,
        register: str,
        argument: Value = None,
        expected: Value = None,
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
    ) -> Operation:
        """Do one operation and return it; raise `Unreachable` if there is no connection."""
        url = self._random.choice(self._urls) if url is None else url
        connection = self._connect(url)
        sent: Any = {".sv": {"increment": argument}} if kind == "add" else argument
        body = None if kind == "read" else json.dumps(sent)
        pending = self._history.begin(self.client, kind, register, argument, expected)
        try:
            target = self._plan.target(register)
            connection.request(METHODS[kind], target, body, dict(headers or {}))
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException):
            self._disconnect(url)
            return pending.end(Outcome.UNKNOWN)
        outcome, result = self._understand(kind, argument, response, content)
        return pending.end(outcome, result)

    def close(self) -> None:
        """Close the connections."""
        for url in list(self._connections):
            self._disconnect(url)

    def _understand(
        self, kind: Kind, argument: Value, response: HTTPResponse, content: bytes
    ) -> tuple[Outcome, Value | Unseen]:
        body = json.loads(content)
        outcome = classify(response.status, body)
        self.tag = response.headers["ETag"]
        if outcome is Outcome.MISMATCH:
            return outcome, body.get("data", UNSEEN)
        if outcome is not Outcome.OK or kind in ("read", "add"):
            return outcome, body if outcome is Outcome.OK else UNSEEN
        if kind == "push":
            return outcome, str(body["name"])
        if body != argument:
            raise Unexpected(f"{argument!r} was set, and the response is {body!r}.")
        return outcome, UNSEEN

    def _connect(self, url: str) -> HTTPConnection:
        """Return an open connection to a URL; raise `Unreachable`."""
        if self._random.random() < RECONNECTING:
            self._disconnect(url)
        connection = self._connections.get(url)
        if connection is None:
            connection = _Connection(url)
            self._connections[url] = connection
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as error:
                self._disconnect(url)
                raise Unreachable(url) from error
        return connection

    def _disconnect(self, url: str) -> None:
        connection = self._connections.pop(url, None)
        if connection is not None:
            connection.close()


class Workload:
    """All clients of a plan, each in a thread."""

    def __init__(self, urls: Sequence[str], plan: Plan) -> None:
        self.plan: Final = plan
        self.history: Final = History()
        self._urls = urls
        self._ended = 0
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._tags: dict[tuple[str, Value], str] = {}
        self._numbers = itertools.count(1)
        self._threads = [
            threading.Thread(target=self._work, args=(client,), daemon=True)
            for client in range(plan.clients)
        ]

    @property
    def ended(self) -> int:
        """How many operations have ended that were not refused."""
        return self._ended

    def start(self) -> None:
        """Start the clients."""
        for thread in self._threads:
            thread.start()

    def await_ended(self, count: int) -> None:
        """Wait until so many operations have ended; raise what a client met instead."""

        def is_so() -> bool:
            return self._ended >= count or bool(self._errors)

        with self._changed:
            before = -1
            while not is_so():
                assert before != self._ended, f"Nothing has ended for {PATIENCE_S} s."
                before = self._ended
                self._changed.wait_for(is_so, PATIENCE_S)
        self._raise_error()

    def stop(self) -> None:
        """Let the clients end after their present operations, and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def join(self) -> None:
        """Wait until the clients have ended; raise what one of them met."""
        self.await_ended(self.plan.operations)
        self.stop()
        self._raise_error()

    def finish(self) -> None:
        """Do the last operations: read each register at each URL, then set `plan.end`."""
        caller = Caller(-1, self._urls, self.plan, self.history)
        for url in self._urls:
            for register in [*self.history.registers(), self.plan.end]:
                caller.call("read", register, url=url)
        last = caller.call("write", self.plan.end, f"end {next(self._numbers)}")
        caller.close()
        assert last.outcome is Outcome.OK, last

    def _raise_error(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _work(self, client: int) -> None:
        chance = random.Random(f"{self.plan.seed} {client}")
        caller = Caller(client, self._urls, self.plan, self.history, chance.randrange(2**32))
        try:
            while not self._stop.is_set() and self._ended < self.plan.operations:
                self._act(caller, chance)
        except BaseException as error:
            with self._changed:
                self._errors.append(error)
                self._changed.notify_all()
        finally:
            caller.close()

    def _act(self, caller: Caller, chance: random.Random) -> None:
        action = chance.choice(ACTIONS)
        register = f"/{self.plan.root}/r{chance.randrange(self.plan.registers)}"
        counter = f"/{self.plan.root}/c{chance.randrange(self.plan.counters)}"
        if action == "swap":
            self._swap(caller, register)
        elif action == "count":
            self._do(caller, "read", counter)
        elif action == "add":
            self._do(caller, "add", counter, 1)
        elif action == "push":
            self._do(caller, "push", self.plan.log, self._new(caller))
        elif action == "write":
            self._do(caller, "write", register, self._new(caller))
        else:
            self._do(caller, "read", register)

    def _swap(self, caller: Caller, register: str) -> None:
        """Read a value and replace it; after a mismatch replace once what was found instead."""
        seen = self._do(caller, "read", register, headers=TAG)
        for _ in range(2):
            tag = caller.tag
            if seen.result is UNSEEN or tag is None:
                return
            self._check_tag(register, seen.result, tag)
            new = self._new(caller)
            seen = self._do(caller, "swap", register, new, seen.result, {"If-Match": tag})

    def _new(self, caller: Caller) -> str:
        return f"{caller.client}.{next(self._numbers)}"

    def _check_tag(self, register: str, value: Value, tag: str) -> None:
        """Check that a value has the same tag whenever and wherever it is read."""
        if self._tags.setdefault((register, value), tag) != tag:
            raise BadHistory(f"{register} has two entity tags for {value!r}.")

    def _do(
        self,
        caller: Caller,
        kind: Kind,
        register: str,
        argument: Value = None,
        expected: Value = None,
        headers: Mapping[str, str] | None = None,
    ) -> Operation:
        """Do one operation, as soon as there is a connection."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                operation = caller.call(kind, register, argument, expected, headers)
                break
            except Unreachable:
                if time.monotonic() > end:
                    raise
                self._stop.wait(RETRY_S)
        if operation.outcome is Outcome.REFUSED:
            self._stop.wait(RETRY_S)  # it does not count: the others are left for what comes next
            return operation
        with self._changed:
            self._ended += 1
            self._changed.notify_all()
        return operation
