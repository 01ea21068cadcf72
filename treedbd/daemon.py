"""The daemon: the service that `twistd treedb` runs.

Only this module and `process` change the whole process: signals, the clock of the timers, the exit
status, the output for the operator.

The daemon notifies the `ServiceManager` that has started it. With `--lan` it prints URLs, a QR
code, the admin's token and the authority when it is ready (`lan_lines`), on standard output, which
is the only place where the token is ever shown.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import pathlib
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import apsw
import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import ILogObserver, Logger
from twisted.python.components import Componentized
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny

import twisted
from treedbd import __version__
from treedbd.config.certificate import BadCertificate, ensure_lan_certificate
from treedbd.config.endpoints import (
    AUTHORITY_CERTIFICATE,
    LOCAL_CERTIFICATE,
    Endpoint,
    LocalNetwork,
    find_local_network,
)
from treedbd.config.listening import CannotStart
from treedbd.config.settings import Settings
from treedbd.config.values import ConfigError
from treedbd.errors import OperatorError, in_one_line
from treedbd.loop import Turns, record_turns
from treedbd.operating.log import LogOutput, LogTarget
from treedbd.process import (
    Signals,
    begin_freeing,
    freeze_objects,
    raise_open_file_limit,
    report_long_turns,
    share_arena,
    use_monotonic_clock,
)
from treedbd.service import TreeService, make_trust
from treedbd.web.auth.verifier import OWNER_TOKEN
from treedbd.web.pages import curl_line
from treedbd.workers.protocol import SettingsSource
from treedbd.workers.supervisor import Supervisor

ONLY_THIS_MACHINE: Final = "only this machine can connect, all its users"
ALL_MACHINES: Final = "with --lan every machine of the network can connect, everybody there"


def make_daemon(
    file: str | None,
    flags: Mapping[str, object],
    signals: Signals,
    *,
    accept_loss: bool,
    quiet: bool,
    in_foreground: bool,
    is_lan: bool = False,
    log_target: LogTarget | None = None,
) -> Daemon:
    """Read the configuration and make the daemon; a bad one ends the process with one sentence.

    `file` is the configuration file, None in development mode, which `is_lan` opens to other
    machines; `accept_loss` and `quiet` are as in `Settings`. The daemon logs to `log_target`; if
    that is None, twistd decides how.
    """
    source = SettingsSource(
        file,
        flags,
        str(pathlib.Path.cwd()),
        accept_loss=accept_loss,
        quiet=quiet,
        network=find_local_network() if is_lan else None,
    ).read()
    try:
        settings = source.load()
        if not settings.client_endpoints:
            raise settings.listen_location.error(
                "names no endpoint", "set it there, or give --listen ENDPOINT"
            )
        # Not imported at the top, because importing the reactor installs it.
        reactor = namedAny("twisted.internet.reactor")
        use_monotonic_clock(reactor)
        return Daemon(
            settings=settings,
            reactor=reactor,
            source=source,
            signals=signals,
            manager=ServiceManager.from_environment(os.environ, reactor),
            log_output=None if log_target is None else log_target.open(settings.log.format),
            in_foreground=in_foreground,
        )
    except OperatorError as error:
        raise SystemExit(in_one_line(f"treedb: {error}")) from None


class Daemon(Service):
    """A `TreeService` that has a process to itself.

    `signals` end it. SIGHUP reloads certificates, rules files, and the secrets and providers that
    the configuration names. If the start fails, the process ends with status 1 and one sentence on
    standard error. A daemonised process has no standard error: it logs the sentence, and the twistd
    that started it prints the beginning.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        source: SettingsSource,
        signals: Signals,
        manager: ServiceManager,
        log_output: LogOutput | None = None,
        *,
        in_foreground: bool,
    ) -> None:
        """Prepare; nothing is opened yet. `source` is where the settings are read from again.

        The whole process logs to `log_output`; if that is None, twistd decides how.
        """
        raise_open_file_limit()
        share_arena()
        self.tree: TreeService | Supervisor
        if settings.workers > 1:
            make_trust(settings)  # a worker could not say what is wrong with the file
            self.tree = Supervisor(settings, reactor, source)
        else:
            self.tree = TreeService(settings, reactor)
        self._settings = settings
        self._source = source
        self._reactor = reactor
        self._signals = signals
        self._manager = manager
        self._log_output = log_output
        self._in_foreground = in_foreground

    def setServiceParent(self, parent: Any) -> None:
        """Join an application, and make this daemon's observer that of its log."""
        if self._log_output is not None and Componentized in type(parent).__mro__:
            parent.setComponent(ILogObserver, self._log_output.writer)
        Service.setServiceParent(self, parent)

    def privilegedStartService(self) -> None:
        """Open the ports."""
        self._start(self.tree.privilegedStartService)

    def startService(self) -> None:
        """Open the stores; announce the daemon once requests are answered."""
        for line in describe_start(self._settings):
            self._log.info("{line}", line=line)
        self._start(self.tree.startService)
        Service.startService(self)
        self._signals.follow_reactor(self._reactor, self._stop_reactor, self._reload)
        if self._log_output is not None and self._log_output.file is not None:
            self._signals.follow_rotation(self._reactor, self._log_output.file.reopen)
        if isinstance(self.tree, Supervisor):
            self.tree.ready.addCallbacks(self._announce, self._fail)
            return
        turns = Turns(report_long_turns)
        if record_turns(self._reactor, turns):
            self.tree.show_turns(turns)
        begin_freeing(self._reactor)
        self._reactor.callWhenRunning(self._announce, self.tree.has_open_rules())

    def stopService(self) -> Deferred[None]:
        """Close everything in order."""
        Service.stopService(self)
        self._manager.stopping()
        return self.tree.stopService().addBoth(self._end)

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
        self._manager.reloading()
        if self._settings.network is not None:
            self._renew_lan_certificate(self._settings.network)
        try:
            settings = self._source.read().load()
        except ConfigError as error:
            self._log.error("{reason} The settings read before stay in use.", reason=str(error))

        def report(is_valid: bool) -> bool:
            what = "The reload of certificates, secrets, providers and rules files"
            is_done = is_valid and settings is not None
            if is_done:
                self._log.info("{what} is done.", what=what)
            else:
                self._log.error("{what} failed, for the reasons above.", what=what)
            return is_done

        reloading = self.tree.reload(settings).addCallback(report)
        reloading.addErrback(lambda failure: self._log.failure("The reload failed.", failure))
        reloading.addCallback(self._report_reload)

    def _report_reload(self, is_done: bool | None) -> None:
        outcome = "" if is_done else " The last reload failed: see the log."
        self._manager.reloaded(f"{self._status()}{outcome}")

    def _status(self) -> str:
        return f"Serving {' '.join(self.tree.urls())}."

    def _renew_lan_certificate(self, before: LocalNetwork) -> None:
        """Issue the certificate again if this machine has got another address."""
        now = find_local_network()
        network = attrs.evolve(before, names=now.names, addresses=now.addresses)
        try:
            ensure_lan_certificate(
                self._settings.data, network, datetime.datetime.now(datetime.UTC)
            )
        except BadCertificate as error:
            self._log.error("{reason}", reason=str(error))

    def _end(self, result: None) -> None:
        self._signals.ignore()
        if self.tree.has_given_up:
            # Twisted and the interpreter would wait for the thread that waits for the disk.
            sys.stdout.flush()
            self._signals.exit()
        return result

    def _stop_reactor(self) -> None:
        with contextlib.suppress(ReactorNotRunning):  # a second signal
            self._reactor.stop()

    def _fail(self, failure: Failure) -> None:
        """End the process with status 1 and one sentence, because a worker cannot start."""
        failure.trap(CannotStart)
        reason = in_one_line(f"treedb: {failure.getErrorMessage()}")
        if self._in_foreground:
            print(reason, file=sys.__stderr__, flush=True)
        else:
            self._log.critical("{reason}", reason=reason)
        self.tree.stopService().addBoth(lambda _: self._signals.exit(1))

    def _announce(self, has_open_rules: bool) -> None:
        freeze_objects()
        urls = self.tree.urls()
        if self._settings.development:
            self._announce_development(urls, is_open=has_open_rules)
        if ops_urls := self.tree.ops_urls():
            self._log.info("Metrics and health: {urls}", urls=" ".join(ops_urls))
        if consoles := self.tree.console_urls():
            shown = " ".join(f"{each}/.console/" for each in consoles)
            self._log.info("Console: {urls}", urls=shown)
        line = " ".join(("treedb ready", *urls))
        if self._in_foreground and sys.__stdout__ is not None:
            print(line, file=sys.__stdout__, flush=True)
        else:
            self._log.info("{line}", line=line)
        self._manager.ready(self._status())

    def _announce_development(self, urls: Sequence[str], *, is_open: bool) -> None:
        network = self._settings.network
        who = ONLY_THIS_MACHINE if network is None else ALL_MACHINES
        self._log.info(
            "Development mode: {who} may read and write everything until rules are put, and "
            "projects are created on use.",
            who=who,
        )
        command = curl_command(
            urls, self._settings.data, is_open=is_open, is_lan=network is not None
        )
        if command is not None:
            self._log.info("Try: {command}", command=command)
        plain = next((each for each in urls if each.startswith("http:")), None)
        if plain is not None:  # with TLS a browser would warn of the certificate
            self._log.info("Or open {url} in a browser.", url=f"{_by_name(plain)}/")
        output = sys.__stdout__
        if network is not None and output is not None:
            encoding = output.encoding if output.isatty() else None
            lines = lan_lines(self._settings, network, urls, encoding=encoding)
            # Not by the logger: there is a token among them.
            print(*lines, sep="\n", file=output, flush=True)


def describe_start(settings: Settings) -> list[str]:
    """Return the lines that begin the log: versions, data, projects, limits."""
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"treedb {__version__}, Twisted {twisted.__version__}, Python {python}"
    engine = settings.engine.partition("?")[0]  # the rest may be long
    projects = ", ".join(sorted(settings.projects)) or "none"
    limits = settings.limits
    return [
        f"{versions}, SQLite {apsw.sqlite_lib_version()}.",
        f"Data directory: {settings.data}. Engine: {engine}. Workers: {settings.workers}.",
        f"Projects: {projects}. Default project: {settings.default_project or 'none'}. "
        f"Domains: {', '.join(settings.domains) or 'any'}.",
        f"Limits: {limits.connections} connections, {limits.streams} streams, "
        f"{limits.sockets} WebSockets, "
        f"{limits.databases} databases, {limits.write_body_bytes} bytes in a body.",
    ]


def curl_command(
    urls: Sequence[str], data: pathlib.Path, *, is_open: bool, is_lan: bool = False
) -> str | None:
    """Return a command that writes to the first URL; None if curl can use none of them.

    Its certificate is the one in `data`. Unless `is_open`, it sends the token of an admin; with
    `is_lan`, that in the variable `TREEDB_TOKEN`.
    """
    url = next((each for each in urls if each.startswith(("https:", "http:"))), None)
    if url is None:
        return None
    certificate = str(data / (AUTHORITY_CERTIFICATE if is_lan else LOCAL_CERTIFICATE))
    target = f"{_by_name(url)}/hello.json"
    line = curl_line(
        target,
        ("-X", "PUT", "-d", '"world"'),
        certificate if url.startswith("https:") else None,
        None if is_open or is_lan else OWNER_TOKEN,
    )
    if is_lan and not is_open:  # a variable, which must not be quoted as the rest is
        return line.replace(" -X ", ' -H "Authorization: Bearer $TREEDB_TOKEN" -X ', 1)
    return line


def _by_name(url: str) -> str:
    return url.replace("127.0.0.1", "localhost")


def print_as_sentence(*kinds: type[Exception]) -> None:
    """Make the interpreter print a sentence, not a traceback, if one of `kinds` ends it."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, kinds):
            print(in_one_line(f"treedb: {error}"), file=sys.__stderr__, flush=True)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook


_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_PASSED_SOCKETS: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_RETRY_S: Final = 0.1
_MAX_WAITING: Final = 100

_log = Logger()


class ServiceManager:
    """The service manager that has started the daemon, or none.

    The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): datagrams of lines to the
    socket that NOTIFY_SOCKET names. Without that variable nothing is sent.
    """

    def __init__(self, address: str, watchdog_s: float, clock: IReactorTime) -> None:
        """Send to the Unix socket `address`, which may be abstract (`@`); to none if it is empty.

        `watchdog_s` is the longest time without a sign of life; 0 without a limit.
        """
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._clock = clock
        self._socket: socket.socket | None = None
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._retry: IDelayedCall | None = None
        self._next_sign: IDelayedCall | None = None
        self._is_ready = False

    @classmethod
    def from_environment(
        cls, environment: MutableMapping[str, str], clock: IReactorTime
    ) -> ServiceManager:
        """Return the manager that the environment names, and remove its variables.

        A child process must neither notify it nor believe that sockets were passed to the child.
        (Twisted reads which sockets were passed when `twisted.internet.endpoints` is imported.)
        """
        for name in _PASSED_SOCKETS:
            environment.pop(name, None)
        address = environment.pop(_SOCKET, "")
        microseconds = environment.pop(_WATCHDOG, "")
        pid = environment.pop(_WATCHDOG_PID, str(os.getpid()))
        is_watched = microseconds.isdecimal() and pid == str(os.getpid())
        return cls(address, int(microseconds) / 1e6 if is_watched else 0.0, clock)

    def ready(self, status: str) -> None:
        """Report that the daemon serves, and begin to send signs of life if they are required.

        The reactor sends them, so they end when it is blocked.
        """
        self._is_ready = True
        self._send("READY=1", _status(status))
        if self._watchdog_s and self._address:
            self._next_sign = self._clock.callLater(0, self._give_sign)

    def reloading(self) -> None:
        """Report that a reload begins; nothing if the daemon is not ready yet."""
        if self._is_ready:
            now_us = time.monotonic_ns() // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", _status("Reloading."))

    def reloaded(self, status: str) -> None:
        """Report that a reload is over; nothing if the daemon is not ready yet."""
        if self._is_ready:
            self._send("READY=1", _status(status))

    def stopping(self) -> None:
        """Report that the daemon stops."""
        self._is_ready = False
        if self._next_sign is not None:
            self._next_sign.cancel()
            self._next_sign = None
        self._send("STOPPING=1", _status("Stopping."))

    def _give_sign(self) -> None:
        self._next_sign = self._clock.callLater(self._watchdog_s / 2, self._give_sign)
        if not self._waiting:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address:
            self._waiting.append("\n".join(lines).encode())
            if self._retry is None:
                self._send_waiting()

    def _send_waiting(self) -> None:
        """Send the datagrams that wait, in order; try again later if the manager has no room."""
        self._retry = None
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            while self._waiting:
                self._socket.sendto(self._waiting[0], self._address)
                self._waiting.popleft()
        except BlockingIOError:
            self._retry = self._clock.callLater(_RETRY_S, self._send_waiting)
        except OSError as error:
            self._waiting.clear()
            self._address = ""
            _log.warn(
                "The service manager cannot be notified ({reason}): it is not tried again.",
                reason=os.strerror(error.errno or 0),
            )


def _status(text: str) -> str:
    return f"STATUS={in_one_line(text)}"


_ANY_INTERFACE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_NO_ADDRESS: Final = "None yet: this machine has no address in a network."
_ONLY_LOOPBACK: Final = "None: the endpoints that --listen names are on loopback."


def lan_lines(
    settings: Settings, network: LocalNetwork, urls: Sequence[str], *, encoding: str | None
) -> list[str]:
    """Return the lines to print; `urls` are those of the endpoints for clients, on this machine.

    `encoding` is that of a terminal, which shows a QR code; None without one.
    """
    found = lan_urls(settings.client_endpoints, network, urls)
    is_reachable = not all(endpoint.is_loopback for endpoint in settings.client_endpoints)
    why_none = _NO_ADDRESS if is_reachable else _ONLY_LOOPBACK
    lines = ["", "With --lan other machines of the network can connect:"]
    lines += [f"    {url}" for url in found] or [f"    {why_none}"]
    others = network.addresses[1:]
    if found and others:
        lines += [f"    (other addresses of this machine: {', '.join(others)})"]
    if found and encoding is not None:
        lines += ["", *_qr_code(found[0], encoding)]
    return [
        *lines,
        "",
        "The token of an admin, in place of owner; new at each start, and shown nowhere else:",
        f"    {network.admin_token}",
        "",
        "A device accepts the certificate once it trusts this authority (how: docs/serving.md):",
        f"    {settings.data.absolute() / AUTHORITY_CERTIFICATE}",
        "",
    ]


def lan_urls(listen: Iterable[Endpoint], network: LocalNetwork, urls: Iterable[str]) -> list[str]:
    """Return the URLs at which other machines reach the endpoints; those have TLS."""
    found = []
    for endpoint, url in zip(listen, urls, strict=True):
        parts = urlsplit(url)
        if endpoint.is_loopback or parts.scheme != "https":
            continue
        if endpoint.interface not in _ANY_INTERFACE:
            found.append(url)
            continue
        multicast = [name for name in network.names if name.endswith(".local")]
        hosts = (*_reachable(endpoint, network)[:1], *multicast)
        found += [f"{parts.scheme}://{host}:{parts.port}" for host in hosts]
    return found


def _reachable(endpoint: Endpoint, network: LocalNetwork) -> list[str]:
    """Return the addresses of the family of an endpoint, as URLs have them."""
    six = [f"[{each}]" for each in network.addresses if ":" in each]
    four = [each for each in network.addresses if ":" not in each]
    return six if endpoint.interface == "::" else four


def _qr_code(url: str, encoding: str) -> list[str]:
    drawn = io.StringIO()
    make: Any = namedAny("segno.make")  # loaded for `--lan` alone
    make(url, error="l", micro=False).terminal(drawn, border=2, compact=True)
    try:
        drawn.getvalue().encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return []
    return drawn.getvalue().splitlines()
