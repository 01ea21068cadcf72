"""The daemon: the command line of `twistd treedb`, and the service that it starts.

Only this module changes the process as a whole: signals, the clock of the timers, the exit status,
the output for the operator. `makeService` runs before twistd daemonises, so it opens only the
configuration file.
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

from treedbd.config.certificate import LOCAL_CERTIFICATE
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.service import CannotStart, TreeService
from treedbd.text import in_one_line
from treedbd.web.auth.verifier import OWNER_TOKEN

FLAGS: Final = ("data", "engine", "listen", "workers")
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Options(UsageOptions):
    """The command line after `twistd treedb`."""

    synopsis = "[options]"
    longdesc = (
        "Serves a JSON tree database over HTTPS. Without --config it runs in development mode: "
        "only this machine can connect, all its users may read and write everything until rules "
        "are put, and the data is in ./treedb-data."
    )
    optParameters = (
        ("config", "c", None, "The configuration file (TOML)."),
        ("data", "d", None, "The directory that holds the databases."),
        ("engine", "e", None, "The storage engine: sqlite or memory."),
    )

    def opt_listen(self, endpoint: str) -> None:
        """Listen on this endpoint, such as tcp:8080:interface=127.0.0.1; may be repeated."""
        self.setdefault("listen", []).append(endpoint)

    opt_l = opt_listen

    def opt_workers(self, number: str) -> None:
        """Run this number of processes; only 1 is possible at present."""
        self["workers"] = int(number) if number.isdecimal() else number

    opt_w = opt_workers

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse; an error ends the process with one sentence."""
        try:
            UsageOptions.parseOptions(self, options)
        except UsageError as error:
            reason = str(error).rstrip(".")
            raise SystemExit(in_one_line(f"treedb: {reason}: see twistd treedb --help.")) from None

    @property
    def flags(self) -> dict[str, object]:
        """The settings that the command line gives."""
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
            raise settings.listen_location.error(
                "names no endpoint", "set it there, or give --listen ENDPOINT"
            )
    except ConfigError as error:
        raise SystemExit(in_one_line(f"treedb: {error}")) from None
    # Its default would end the process; there is nothing to reload yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Not imported at the top, because importing the reactor installs it.
    reactor = namedAny("twisted.internet.reactor")
    use_monotonic_clock(reactor)
    in_foreground = options.parent is None or bool(options.parent["nodaemon"])
    return Daemon(settings, reactor, read, in_foreground=in_foreground)


def use_monotonic_clock(reactor: Any) -> None:
    """Make timers follow the monotonic clock, so that a step of the wall clock cannot stop them.

    Must be called before anything is scheduled.
    """
    reactor.seconds = time.monotonic


def raise_open_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_objects() -> None:
    """Exclude all objects that exist from garbage collection: they are in use until the end.

    A full collection then visits what requests have created, not every module.
    """
    gc.collect()
    gc.freeze()


class Daemon(Service):
    """A `TreeService` that has a process to itself.

    SIGTERM and SIGINT end it with status 0. SIGHUP reloads certificates, rules files, and the
    secrets and providers that the configuration names. If the start fails, the process ends with
    status 1 and one sentence on standard error. A daemonised process has no standard error: it logs
    the sentence, and the twistd that started it prints the beginning.
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
        """Prepare; nothing is opened yet. `read_settings` reads the settings again."""
        self.tree = TreeService(settings, reactor)
        self._settings = settings
        self._read_settings = read_settings
        self._reactor = reactor
        self._in_foreground = in_foreground

    def privilegedStartService(self) -> None:
        """Open the ports."""
        raise_open_file_limit()
        self._start(self.tree.privilegedStartService)

    def startService(self) -> None:
        """Open the stores; announce the daemon once requests are answered."""
        self._start(self.tree.startService)
        Service.startService(self)
        signal.signal(signal.SIGHUP, self._call_in_reactor(self._reload))
        for stop in STOP_SIGNALS:
            # In force again when the reactor has ended, while the process ends.
            signal.signal(stop, signal.SIG_IGN)
            # Set once the reactor runs, in place of Twisted's own handlers, which would end twistd
            # by that signal instead of with status 0.
            self._reactor.callWhenRunning(
                signal.signal, stop, self._call_in_reactor(self._stop_reactor)
            )
        self._reactor.callWhenRunning(self._announce)

    def stopService(self) -> Deferred[None]:
        """Close everything in order."""
        Service.stopService(self)
        return self.tree.stopService().addBoth(self._ignore_signals)

    def _start(self, step: Callable[[], None]) -> None:
        try:
            step()
        except CannotStart as error:
            if not self._in_foreground:
                self._log.critical("{reason}", reason=str(error))
            print_as_sentence(CannotStart)
            raise

    def _reload(self) -> None:
        settings = None
        try:
            settings = self._read_settings()
        except ConfigError as error:
            self._log.error("{reason} The settings read before stay in use.", reason=str(error))
        is_complete = self.tree.reload(settings) and settings is not None
        self._log.info(
            "The reload of certificates, secrets, providers and rules files is done{result}.",
            result="" if is_complete else ", with errors",
        )

    def _call_in_reactor(self, call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def handle(_signal: int, _frame: FrameType | None) -> None:
            self._reactor.callFromThread(call)

        return handle

    def _ignore_signals(self, result: None) -> None:
        """Ignore further signals: the process is ending, and no handler can run in the end."""
        for stop in STOP_SIGNALS:
            signal.signal(stop, signal.SIG_IGN)
        return result

    def _stop_reactor(self) -> None:
        with contextlib.suppress(ReactorNotRunning):  # a second signal
            self._reactor.stop()

    def _announce(self) -> None:
        freeze_objects()
        urls = self.tree.urls()
        if self._settings.development:
            self._log.info(
                "Development mode: only this machine can connect, all its users may read and write "
                "everything until rules are put, and projects are created on use. Data: {data}",
                data=str(self._settings.data),
            )
            command = curl_command(urls, self._settings.data, is_open=self.tree.has_open_rules())
            if command is not None:
                self._log.info("Try: {command}", command=command)
        line = " ".join(("treedb ready", *urls))
        if self._in_foreground and sys.__stdout__ is not None:
            print(line, file=sys.__stdout__, flush=True)
        else:
            self._log.info("{line}", line=line)


def curl_command(urls: Sequence[str], data: pathlib.Path, *, is_open: bool) -> str | None:
    """Return a command that writes to the first URL; None if curl can use none of them.

    Its certificate is the one in `data`. Unless `is_open` it sends the token of an admin.
    """
    url = next((each for each in urls if each.startswith(("https:", "http:"))), None)
    if url is None:
        return None
    trust = ["--cacert", str(data / LOCAL_CERTIFICATE)] if url.startswith("https:") else []
    token = [] if is_open else ["-H", f"Authorization: Bearer {OWNER_TOKEN}"]
    target = f"{url.replace('127.0.0.1', 'localhost')}/hello.json"
    return shlex.join(["curl", *trust, *token, "-X", "PUT", "-d", '"world"', target])


def print_as_sentence(*kinds: type[Exception]) -> None:
    """Make the interpreter print a sentence, not a traceback, if one of `kinds` ends it."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, kinds):
            print(in_one_line(f"treedb: {error}"), file=sys.__stderr__, flush=True)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook
