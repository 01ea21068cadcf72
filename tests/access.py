"""What the tests of identity and rules share: daemons with projects, tokens, and event streams.

A project has one secret, in the file `<project>.secret`. Tokens are signed by PyJWT, not by the
product.
"""

from __future__ import annotations

import json
import pathlib
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import jwt

from tests.daemon import Daemon, Response
from tests.rest import Client, Headers, escape
from tests.sse import EventStream

DOMAIN: Final = "db.test"
RULES: Final = "/.settings/rules.json"
DATABASES: Final = "/.inspect/databases.json"
LEEWAY_S: Final = 10


class Event(NamedTuple):
    """One event of a stream; `data` is parsed if it is JSON."""

    kind: str
    data: Any
    id: str | None = None


CANCEL: Final = Event("cancel", None)
AUTH_REVOKED: Final = Event("auth_revoked", "credential is no longer valid")
KEEP_ALIVE: Final = Event("keep-alive", None)


def put_event(path: str, data: Any) -> Event:
    """Return the event of a value that was put."""
    return Event("put", {"path": path, "data": data})


def secret_of(project: str) -> str:
    """Return the secret of a project."""
    return f"the secret of the project {project} ".ljust(48, "-")


def write_secret(folder: pathlib.Path, project: str, secret: str | None = None) -> pathlib.Path:
    """Write the file of a project's secret, or of another secret; return its path."""
    file = folder / f"{project}.secret"
    file.write_text((secret or secret_of(project)) + "\n")
    file.chmod(0o600)
    return file


def token(project: str, secret: str | None = None, **claims: Any) -> str:
    """Return a token of a project, signed with its secret or with another."""
    return jwt.encode(claims, secret or secret_of(project), "HS256")


def admin(project: str) -> str:
    """Return a token of an admin of a project."""
    return token(project, admin=True)


def user(project: str, uid: str, **claims: Any) -> str:
    """Return a token of a user of a project."""
    return token(project, uid=uid, **claims)


def ending(seconds: float) -> float:
    """Return the `exp` of a token that is valid for `seconds` more, leeway included."""
    return time.time() + seconds - LEEWAY_S


def at(path: str, token: str = "", **parameters: Any) -> str:
    """Return the target of a path with a token and parameters; values not text become JSON."""
    texts = {"auth": token} if token else {}
    for name, value in parameters.items():
        texts[name] = value if isinstance(value, str) else json.dumps(value)
    query = "&".join(f"{name}={escape(value)}" for name, value in texts.items())
    return f"{path}{'&' if '?' in path else '?'}{query}" if query else path


class Tree(Client):
    """A client of one project, under the domain of the tests."""

    def __init__(self, daemon: Daemon, project: str, database: str = "") -> None:
        """Prepare; the first request opens the connection."""
        label = f"{database}--{project}" if database else project
        super().__init__(daemon, f"{label}.{DOMAIN}")
        self.project: Final = project
        self.admin: Final = admin(project)

    def status(self, method: str, target: str, body: str | None = None) -> int:
        """Send a request and return the status of its response."""
        return self.request(method, target, body).status

    def seed(self, path: str, value: Any) -> None:
        """Set a value as an admin."""
        self.put(at(path, self.admin), value)

    def see(self, path: str) -> Any:
        """Return a value as an admin."""
        return self.get(at(path, self.admin))

    def put_rules(self, rules: Any) -> None:
        """Put rules, given without the top level `{"rules": …}`."""
        response = self.request("PUT", at(RULES, self.admin), json.dumps({"rules": rules}))
        assert (response.status, response.json) == (200, {"status": "ok"}), response

    def listen(self, target: str, headers: Mapping[str, str] | None = None) -> Stream:
        """Open a stream that must be allowed."""
        stream = self.try_to_listen(target, headers)
        assert stream.status == 200, stream.refusal
        return stream

    def try_to_listen(self, target: str, headers: Mapping[str, str] | None = None) -> Stream:
        """Open a stream that may be refused."""
        return Stream(self, target, headers or {})


class Stream(EventStream):
    """An event stream, read event by event."""

    def __init__(self, client: Client, target: str, headers: Headers = ()) -> None:
        """Request the stream; `refusal` is the response if it was not opened."""
        super().__init__(client, target, headers)
        self.refusal: Response | None = None
        if self.status != 200:
            body = self.wire.receive_body("GET", self.status, self.headers)
            self.refusal = Response(self.status, self.headers, body)

    def next(self) -> Event:
        """Wait for the next event; raise ConnectionError if the stream ends instead."""
        frame = self.next_frame()
        if frame is None:
            raise ConnectionError("The stream has ended.")
        return Event(frame.event, _parsed(frame.data), frame.id)

    def expect(self, *expected: Event) -> None:
        """Check that these events come next; other keep-alives are skipped."""
        for event in expected:
            received = self.next()
            while received == KEEP_ALIVE and event != KEEP_ALIVE:
                received = self.next()
            assert received == event

    def expect_end(self, *last: Event) -> None:
        """Check that these events come next and that the stream ends with them."""
        self.expect(*last)
        assert self.next_frame() is None


def trusting(folder: pathlib.Path, config: str, projects: Iterable[str], *arguments: str) -> Daemon:
    """Return a daemon with `config` and with projects that have a secret each.

    The table of each of `projects` is added to `config`, with the standard dialect, or with that of
    its name if it is `firebase` or `auto`. `config` may have tables of other projects.
    """
    lines = [f'domains = ["{DOMAIN}"]', config]
    for project in projects:
        write_secret(folder, project)
        dialect = project if project in ("firebase", "auto") else "standard"
        lines += [f"[projects.{project}]", f'secret_files = ["{project}.secret"]']
        lines += [f'dialect = "{dialect}"', 'databases = "*"']
    return Daemon(folder, config="\n".join(lines) + "\n", arguments=arguments)


def reload(daemon: Daemon) -> str:
    """Reload the files of a daemon and wait for the end of it; return what was logged meanwhile."""
    mark = daemon.mark()
    daemon.signal(signal.SIGHUP)
    daemon.await_line("The reload of certificates", mark)
    return daemon.log_since(mark)


def statuses_by_method(
    client: Tree, path: str, secret_token: str, headers: Headers = ()
) -> dict[str, int]:
    """Send every method and open a stream, with a token in the query; return the statuses."""
    bodies = {"GET": None, "HEAD": None, "PUT": "1", "POST": "1", "PATCH": '{"a":1}'}
    target = at(path, secret_token)
    found = {
        method: client.request(method, target, bodies.get(method), headers).status
        for method in (*bodies, "DELETE")
    }
    with client.try_to_listen(target, dict(headers)) as stream:
        found["stream"] = stream.status
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
