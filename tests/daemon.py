"""A real daemon for tests: `twistd -n treedb` in a process of its own, on free loopback ports."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from email.message import Message
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, NamedTuple, NewType, Self
from urllib.parse import urlsplit

from tests.closing import Closing
from tests.fork_server import ForkedDaemon, can_fork, fork_server, run_program
from tests.injection import SmallDisk
from tests.shared_server import database_of
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE
from treedbd.files import create_directory

WORKERS = "TREEDB_TEST_WORKERS"
"""The environment variable with the number of workers of each daemon that says nothing else."""
ENGINE = "TREEDB_TEST_ENGINE"
"""The environment variable that is `postgresql` if daemons that say nothing else run over it."""
TWISTD = pathlib.Path(sys.executable).parent / "twistd"
FOREGROUND = (str(TWISTD), "-n", "--pidfile=", "treedb")
SERVE = (sys.executable, "-m", "treedbd", "serve")
START_SECONDS = 180
STOP_SECONDS = 20

Mark = NewType("Mark", int)
"""A place in the log of a daemon, as `Daemon.mark` returns it: a number of lines."""

_READY = re.compile(r"treedb ready (.+)$")


class Response(NamedTuple):
    """The response to a request; the names of headers are case-insensitive."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def short(self) -> tuple[int, bytes]:
        """The status and the body."""
        return self.status, self.body


def connect(url: str, ca: pathlib.Path | None = None) -> HTTPConnection:
    """Return a connection to a URL, not open yet; the certificate of https is verified by `ca`."""
    address = urlsplit(url)
    assert address.hostname is not None
    if address.scheme == "http":
        return HTTPConnection(address.hostname, address.port, timeout=30)
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    return HTTPSConnection(address.hostname, address.port, timeout=30, context=context)


def request(
    url: str,
    method: str,
    target: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    ca: pathlib.Path | None = None,
) -> Response:
    """Send one request on a new connection to a URL, whose path does not count."""
    with contextlib.closing(connect(url, ca)) as connection:
        connection.request(method, target, body, dict(headers or {}))
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())


class Daemon(Closing):
    """A daemon with the data directory `<folder>/data`.

    Without `config` it runs in development mode; `config` is the text of its TOML file. It listens
    with TLS and without on ports that the system chooses, unless `listen` is given. `prefix` is a
    command that runs the daemon's command, such as strace (with its option -D, so that signals
    reach the daemon and not strace). `program` receives the daemon's flags, such as `SERVE`.
    Only the daemon sees the `disk`. The process inherits `descriptors`. Without a prefix,
    descriptors and a program but `SERVE`, and with the environment of all tests, the daemon is
    forked by a `ForkServer`.
    The daemon is killed when its `with` block ends.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        config: str | None = None,
        listen: Sequence[str] | None = None,
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        descriptors: Sequence[int] = (),
        disk: SmallDisk | None = None,
    ) -> None:
        """Prepare the command; nothing is started yet."""
        self.folder = folder
        self.data = folder / "data"
        self.prefix = list(prefix)
        self.urls: list[str] = []
        self._descriptors = descriptors
        self._disk = disk
        self._begin: int | None = None
        """The pipe whose end lets the process begin, if that waits."""
        self._environment = {**os.environ, **(environment or {})}
        self._is_plain = program in (None, SERVE) and not descriptors
        self._lines: list[str] = []
        self._test = ""
        self._test_begin = Mark(0)
        self._written = threading.Condition()
        self._is_at_end = True
        self._process: subprocess.Popen[str] | ForkedDaemon | None = None
        self._reader: threading.Thread | None = None
        endpoints = self._make_endpoints(config) if listen is None else listen
        self._command = [*(program or FOREGROUND), "--data", str(self.data)]
        if config is not None:
            (folder / "treedb.toml").write_text(config)
            self._command += ["--config", "treedb.toml"]
        for endpoint in endpoints:
            self._command += ["--listen", endpoint]
        is_chosen = "--engine" in arguments or re.search("^engine", config or "", re.MULTILINE)
        if os.environ.get(ENGINE) == "postgresql" and not is_chosen:
            self._command += ["--engine", database_of(folder)]
        elif WORKERS in os.environ and "--workers" not in arguments and "--engine" not in arguments:
            self._command += ["--workers", os.environ[WORKERS]]
        self._command += arguments

    def __enter__(self) -> Self:
        """Start the daemon."""
        self.start()
        return self

    def close(self) -> None:
        """Kill the daemon if it is running."""
        self.kill()

    @property
    def http(self) -> str:
        """The first URL without TLS; it has no trailing slash."""
        return next(url for url in self.urls if url.startswith("http:"))

    @property
    def https(self) -> str:
        """The first URL with TLS; it has no trailing slash."""
        return next(url for url in self.urls if url.startswith("https:"))

    @property
    def port(self) -> int:
        """The port of the first URL without TLS."""
        port = urlsplit(self.http).port
        assert port is not None
        return port

    @property
    def ca(self) -> pathlib.Path:
        """The certificate that verifies the daemon, in PEM."""
        return self.data / LOCAL_CERTIFICATE

    @property
    def log(self) -> str:
        """The output of the daemon so far, over all its starts."""
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the daemon and wait until it is ready; raise AssertionError with its log if not."""
        start = self.mark()
        if self._begin is None:
            self._follow(self._fork() if self._can_fork() else self._open())
        else:
            os.close(self._begin)
            self._begin = None
        try:
            line = self.await_line(_READY, start)
        except AssertionError:
            self.kill()
            raise
        self.urls = line[1].split()

    def launch(self) -> None:
        """Start the process, without waiting until it is ready."""
        self._follow(self._open())

    def hold(self) -> None:
        """Start the process, which does nothing before `start`: a fault can be injected first."""
        waiting, self._begin = os.pipe()
        if self._can_fork():
            self._follow(self._fork(waiting))
        else:
            with open(waiting) as stdin:
                hold = ("sh", "-c", 'read _; exec "$0" "$@" < /dev/null')
                self._follow(self._open(hold, stdin.fileno()))

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the daemon to its end, for a start that fails; return its two outputs separately."""
        if self._can_fork():
            return run_program(self._command, self.folder, START_SECONDS)
        return subprocess.run(
            [*self.prefix, *self._command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
            pass_fds=self._descriptors,
        )

    def mark(self) -> Mark:
        """Return the end of the log so far."""
        return Mark(len(self._lines))

    def log_since(self, mark: Mark) -> str:
        """Return what has been logged since a mark."""
        return "".join(self._lines[mark:])

    def await_line(
        self,
        pattern: str | re.Pattern[str],
        since: Mark | None = None,
        seconds: float = START_SECONDS,
    ) -> re.Match[str]:
        """Wait for a line of the log that contains `pattern`, since a mark or in the running test.

        Raises AssertionError with the log if there is none after `seconds`.
        """
        found: list[re.Match[str]] = []
        with self._written:
            begin = self._begin_of_test() if since is None else since

        def find() -> bool:
            nonlocal begin
            for line in self._lines[begin:]:
                found.extend(filter(None, [re.search(pattern, line)]))
            begin = self.mark()
            return bool(found) or self._is_at_end

        with self._written:
            self._written.wait_for(find, seconds)
        if not found:
            raise AssertionError(f"The daemon did not write {pattern!r}:\n{self.log}")
        return found[0]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the daemon ends; return its exit status."""
        assert self._process is not None
        assert self._reader is not None
        status = self._process.wait(seconds)
        self._reader.join(seconds)
        return status

    def stop(self) -> int:
        """Stop the daemon by SIGTERM; return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill the daemon by SIGKILL if it is running."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def restart(self) -> None:
        """Stop the daemon by SIGTERM and start it again; its ports may change."""
        assert self.stop() == 0, self.log
        self.start()

    def connect(self, *, secure: bool = False) -> HTTPConnection:
        """Open a connection to the daemon; with TLS its certificate is verified."""
        return connect(self.https if secure else self.http, self.ca)

    def request(
        self,
        method: str,
        target: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        secure: bool = False,
    ) -> Response:
        """Send one request on a new connection."""
        url = self.https if secure else self.http
        return request(url, method, target, body, headers, ca=self.ca)

    def _make_endpoints(self, config: str | None) -> list[str]:
        secure = "ssl:0:interface=127.0.0.1"
        if config is not None:
            create_directory(self.data)
            files = ensure_local_certificate(self.data, datetime.datetime.now(datetime.UTC))
            secure += f":privateKey={files.key}:certKey={files.certificate}"
        return [secure, "tcp:0:interface=127.0.0.1"]

    def _can_fork(self) -> bool:
        return self._is_plain and not self.prefix and can_fork(self._environment)

    def _fork(self, begin: int | None = None) -> ForkedDaemon:
        holder = None if self._disk is None else self._disk.pid
        server = fork_server()
        return ForkedDaemon(server, self._command, self.folder, begin=begin, beside=holder)

    def _open(
        self, hold: Sequence[str] = (), stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        inside = [] if self._disk is None else self._disk.prefix
        return subprocess.Popen(
            [*inside, *hold, *self.prefix, *self._command],
            cwd=self.folder,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=self._descriptors,
        )

    def _follow(self, process: subprocess.Popen[str] | ForkedDaemon) -> None:
        self.urls = []
        self._is_at_end = False
        self._process = process
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()

    def _begin_of_test(self) -> Mark:
        """Return where the log of the running test begins: what others caused is not its own."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if test != self._test:
            self._test, self._test_begin = test, self.mark()
        return self._test_begin

    def _read(self, process: subprocess.Popen[str] | ForkedDaemon) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with self._written:
                    self._begin_of_test()
                    self._lines.append(line)
                    self._written.notify_all()
        with self._written:
            self._is_at_end = True
            self._written.notify_all()
