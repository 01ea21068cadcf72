"""A small standby for tests of a first: it receives lines, and says where it is when asked to."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tests.access import admin
from tests.closing import Closing
from tests.daemon import Daemon, Response

ID: Final = "5ba4db1e" + 24 * "0"
Position = tuple[int, str]
Line = dict[str, Any]


def ask(
    daemon: Daemon,
    method: str,
    name: str,
    json_body: Any = None,
    *,
    project: str = "shop",
    **more: str,
) -> Response:
    """Send one request of a standby as an admin of a project."""
    body = None if json_body is None else json.dumps(json_body)
    given = "".join(f"&{key}={value}" for key, value in more.items())
    headers = {"Authorization": f"Bearer {admin(project)}"}
    return daemon.request(method, f"/.standby/{name}?ns={project}{given}", body, headers)


def reached(
    daemon: Daemon, positions: Mapping[str, Position], *, standby: str = ID, project: str = "shop"
) -> Any:
    """Say where a standby is."""
    body = {"standby": standby, "positions": positions}
    response = ask(daemon, "POST", "reached.json", body, project=project)
    assert response.status == 200, response
    return response.json


class SmallStandby(Closing):
    """The stream of a standby.

    Attributes:
        lines: what was received.
        positions: the last entry of each database.
        bodies: what the entries of each database have sent, by their numbers.

    """

    def __init__(
        self,
        daemon: Daemon,
        positions: Mapping[str, Position] | None = None,
        *,
        standby: str = ID,
        url: str | None = None,
        term: int = 1,
        project: str = "shop",
        receive_bytes: int = 0,
    ) -> None:
        """Begin at some positions; with `receive_bytes` the system receives few bytes ahead."""
        self.lines: list[Line] = []
        self.positions: dict[str, Position] = {}
        self.bodies: dict[str, dict[int, Any]] = {}
        self._connection = daemon.connect()
        if receive_bytes:
            self._connection.connect()
            self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        body = {"standby": standby, "url": url, "term": term, "positions": dict(positions or {})}
        headers = {"Authorization": f"Bearer {admin(project)}"}
        target = f"/.standby/stream.json?ns={project}"
        self._connection.request("POST", target, json.dumps(body), headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.refusal: Any = None
        if self.status != 200:
            self.refusal = json.loads(self._response.read())

    def close(self) -> None:
        """Cut the connection."""
        with contextlib.suppress(OSError):
            self._response.close()
        self._connection.close()

    def read(self) -> Iterator[Line]:
        """Yield lines as they come."""
        while content := self._response.readline():
            line = json.loads(content)
            self.lines.append(line)
            if "entry" in line:
                self.positions[line["db"]] = line["seq"], line["op"]
                self.bodies.setdefault(line["db"], {})[line["seq"]] = line["entry"].get("sent")
            if "begins" in line:
                self.positions[line["db"]] = line["begins"][0], line["begins"][1]
            yield line

    def until(self, is_wanted: Callable[[Line], bool]) -> Line:
        """Read until a line is wanted; return it."""
        for line in self.read():
            if is_wanted(line):
                return line
        raise AssertionError(f"The stream has ended: {self.lines[-3:]}")

    def until_complete(self) -> Line:
        """Read until a line with the time, before which everything was sent."""
        return self.until(lambda line: "beat" in line)

    def until_entry(self, db: str, sequence: int) -> Line:
        """Read until an entry of a database."""
        return self.until(
            lambda line: line.get("db") == db and line.get("seq") == sequence and "entry" in line
        )
