"""The daemon: what `twistd treedb` takes from the command line and makes of it.

Here, and nowhere below, stands what concerns the whole process: signals, the clock of the timers,
the exit status and what an operator reads. `makeService` runs before twistd daemonises, so nothing
is opened in it but the configuration.
"""

from __future__ import annotations

import contextlib
import gc
import pathlib
import resource
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger
from twisted.python.reflect import namedAny
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from treedbd.certificate import LOCAL_CERTIFICATE
from treedbd.config import Settings, load_settings
from treedbd.keys import ConfigError
from treedbd.service import CannotStart, TreeService
from treedbd.tree.line import in_one_line
from treedbd.web.identity.verifier import OWNER_TOKEN

FLAGS: Final = ("data", "engine", "listen", "workers")
STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class Options(UsageOptions):
    """The command line after `twistd treedb`; what is not given does not stand in `flags`."""

    synopsis = "[options]"
    longdesc = (
        "Serves a JSON tree database over HTTPS. Without --config it runs in development mode: "
        "on this machine alone, open to everybody on it until rules are put, data in ./treedb-data."
    )
    optParameters = (
        ("config", "c", None, "The configuration, a TOML file."),
        ("data", "d", None, "The directory that holds the databases."),
        ("engine", "e", None, "What stores them: sqlite or memory."),
    )

    def opt_listen(self, endpoint: str) -> None:
        """Listen here, as in tcp:8080:interface=127.0.0.1; may be given several times."""
        self.setdefault("listen", []).append(endpoint)

    opt_l = opt_listen

    def opt_workers(self, number: str) -> None:
        """How many processes serve the databases: 1, and nothing else for now."""
        self["workers"] = int(number) if number.isdecimal() else number

    opt_w = opt_workers

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse; end the process with one sentence where that fails."""
        try:
            UsageOptions.parseOptions(self, options)
        except UsageError as error:
            reason = str(error).rstrip(".")
            raise SystemExit(in_one_line(f"treedb: {reason}: see twistd treedb --help.")) from None

    @property
    def flags(self) -> dict[str, object]:
        """The settings that were given."""
        return {name: self[name] for name in FLAGS if self.get(name) is not None}


def makeService(options: Options) -> Daemon:
    """Read the configuration and make the service that twistd runs."""
    file = options["config"]
    folder = pathlib.Path.cwd()

    def read() -> Settings:
        return load_settings(None if file is None else pathlib.Path(file), options.flags, folder)

    try:
        settings = read()
        if not settings.listen:
            raise ConfigError(
                f"{file}: listen names no endpoint: set it there, or give --listen ENDPOINT."
            )
    except ConfigError as error:
        raise SystemExit(in_one_line(f"treedb: {error}")) from None
    # Until there is something to read again: it would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Not imported at the top, because importing the reactor chooses it.
    reactor = namedAny("twisted.internet.reactor")
    use_steady_time(reactor)
    in_foreground = options.parent is None or bool(options.parent["nodaemon"])
    return Daemon(settings, reactor, read, in_foreground=in_foreground)


def use_steady_time(reactor: Any) -> None:
    """Let timers follow the monotonic clock: a step of the wall clock must not freeze them.

    To be called before anything is scheduled.
    """
    reactor.seconds = time.monotonic


def allow_open_files() -> None:
    """Take as many open files as the process may have: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spare_collector() -> None:
    """Let the garbage collector look no more at what there is by now: it lives until the end.

    A full collection then goes through what requests have made, not through every module.
    """
    gc.collect()
    gc.freeze()


class Daemon(Service):
    """A `TreeService` that has a process to itself.

    SIGTERM and SIGINT end it with status 0. SIGHUP makes it read again whom it trusts:
    certificates, rules files, and the secrets and providers that the configuration names. A start
    that fails ends the process with status 1 and one sentence on standard error; a daemonised one
    has none, so the sentence goes to the log, and the beginning of it to who started it.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        read_settings: Callable[[], Settings],
        *,
        in_foreground: bool,
    ) -> None:
        """Prepare; nothing is opened. `read_settings` reads the settings again."""
        self.tree = TreeService(settings, reactor)
        self._settings = settings
        self._read_settings = read_settings
        self._reactor = reactor
        self._in_foreground = in_foreground

    def privilegedStartService(self) -> None:
        """Take the ports."""
        allow_open_files()
        self._start(self.tree.privilegedStartService)

    def startService(self) -> None:
        """Open the stores; say so when requests are being answered."""
        self._start(self.tree.startService)
        Service.startService(self)
        signal.signal(signal.SIGHUP, self._call_in_turn(self._reload))
        for stop in STOPS:
            # What holds again once the reactor has ended, and the process with it.
            signal.signal(stop, signal.SIG_IGN)
            # Twisted sets its own handlers when the reactor starts, and they would make twistd end
            # by that signal instead of with status 0.
            self._reactor.callWhenRunning(
                signal.signal, stop, self._call_in_turn(self._stop_reactor)
            )
        self._reactor.callWhenRunning(self._announce)

    def stopService(self) -> Deferred[None]:
        """Close everything in order."""
        Service.stopService(self)
        return self.tree.stopService().addBoth(self._be_deaf)

    def _start(self, step: Callable[[], None]) -> None:
        try:
            step()
        except CannotStart as error:
            if not self._in_foreground:
                self._log.critical("{reason}", reason=str(error))
            tell_in_one_sentence(CannotStart)
            raise

    def _reload(self) -> None:
        settings = None
        try:
            settings = self._read_settings()
        except ConfigError as error:
            self._log.error("{reason} What it said before stays in force.", reason=str(error))
        self.tree.reload(settings)
        self._log.info("Certificates, secrets, providers and rules files have been looked at.")

    def _call_in_turn(self, call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def handle(_signal: int, _frame: FrameType | None) -> None:
            self._reactor.callFromThread(call)

        return handle

    def _be_deaf(self, result: None) -> None:
        """Hear nothing any more: the process ends, and a handler would not outlive Python."""
        for stop in STOPS:
            signal.signal(stop, signal.SIG_IGN)
        return result

    def _stop_reactor(self) -> None:
        with contextlib.suppress(ReactorNotRunning):  # asked twice
            self._reactor.stop()

    def _announce(self) -> None:
        spare_collector()
        urls = self.tree.urls()
        if self._settings.development:
            self._log.info(
                "Development mode: only this machine can connect, whoever does may read and write "
                "everything until rules are put, and any project comes into being on use. "
                "Data: {data}",
                data=str(self._settings.data),
            )
            command = curl_command(urls, self._settings.data, is_open=self.tree.is_open())
            if command is not None:
                self._log.info("Try: {command}", command=command)
        line = " ".join(("treedb ready", *urls))
        if self._in_foreground and sys.__stdout__ is not None:
            print(line, file=sys.__stdout__, flush=True)
        else:
            self._log.info("{line}", line=line)


def curl_command(urls: Sequence[str], data: pathlib.Path, *, is_open: bool) -> str | None:
    """Return a command that writes to the first URL; its certificate is the one kept in `data`.

    Where not everybody may, an administrator's token is shown. None if there is no URL for curl.
    """
    url = next((each for each in urls if each.startswith(("https:", "http:"))), None)
    if url is None:
        return None
    trust = ["--cacert", str(data / LOCAL_CERTIFICATE)] if url.startswith("https:") else []
    token = [] if is_open else ["-H", f"Authorization: Bearer {OWNER_TOKEN}"]
    target = f"{url.replace('127.0.0.1', 'localhost')}/hello.json"
    return shlex.join(["curl", *trust, *token, "-X", "PUT", "-d", '"world"', target])


def tell_in_one_sentence(*kinds: type[Exception]) -> None:
    """Make the interpreter end with a sentence, not a traceback, where one of `kinds` ends it."""
    previous = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, kinds):
            print(in_one_line(f"treedb: {error}"), file=sys.__stderr__, flush=True)
        else:
            previous(kind, error, trace)

    sys.excepthook = tell
