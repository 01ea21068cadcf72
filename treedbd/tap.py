"""The command line of `twistd treedb`.

This module imports little, so that signals are handled soon after the process has begun; the rest
is imported by `makeService`. That runs before twistd daemonises, so it opens only the configuration
file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from twisted.application.service import IService
from twisted.python.reflect import namedAny
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from treedbd.errors import in_one_line
from treedbd.process import Signals, is_bound_to_terminal

FLAGS: Final = ("data", "engine", "listen", "origin", "reads", "workers")
_UNKNOWN: Final = re.compile(r"option --(\S+) not recognized")


class Options(UsageOptions):
    """The command line after `twistd treedb`."""

    synopsis = "[options]"
    longdesc = (
        "Serves a JSON tree database over HTTPS. Without --config it runs in development mode: "
        "only this machine can connect, all its users may read and write everything until rules "
        "are put, and the data is in ./treedb-data. The same in the foreground is treedb serve."
    )
    optParameters = (
        ("config", "c", None, "The configuration file (TOML)."),
        ("data", "d", None, "The directory that holds the databases."),
        ("engine", "e", None, "The storage engine: sqlite, memory, or a URL postgresql://…"),
        ("reads", None, None, "With postgresql: strict, or local (may be late)."),
    )
    optFlags = (
        ("dev", None, "Development mode, as without --config."),
        ("lan", None, "Development mode for all machines of the local network."),
        (
            "accept-loss",
            None,
            "Serve databases from which changes are missing, such as older copies.",
        ),
        ("quiet", "q", "Do not log the requests of development mode."),
    )

    def opt_listen(self, endpoint: str) -> None:
        """Listen on this endpoint, such as tcp:8080:interface=127.0.0.1; may be repeated."""
        self.setdefault("listen", []).append(endpoint)

    opt_l = opt_listen

    def opt_origin(self, url: str) -> None:
        """Allow writes of pages of this origin, as https://app.example.com; may be repeated."""
        self.setdefault("origin", []).append(url)

    def opt_workers(self, number: str) -> None:
        """Run this number of worker processes, or one for each core (auto)."""
        self["workers"] = int(number) if number.isdecimal() else number

    opt_w = opt_workers

    def postOptions(self) -> None:
        """Check what contradicts; raise `UsageError`."""
        problem = find_contradiction(self["config"], dev=self["dev"], lan=self["lan"])
        if problem is not None:
            raise UsageError(problem)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse; an error ends the process with one sentence."""
        try:
            UsageOptions.parseOptions(self, options)
        except UsageError as error:
            reason = str(error).rstrip(".") + self._suggest(str(error))
            raise SystemExit(in_one_line(f"treedb: {reason}: see twistd treedb --help.")) from None

    def _suggest(self, problem: str) -> str:
        """Return a hint for an option that is probably misspelt; empty for other problems."""
        found = _UNKNOWN.fullmatch(problem)
        if found is None:
            return ""
        suggest: Callable[[str, Iterable[str]], str] = namedAny("treedbd.rules.document.suggest")
        known = (each.removesuffix("=") for each in self.longOpt)
        hint = suggest(f"--{found[1]}", [f"--{each}" for each in known])
        return f" (d{hint[1:]})" if hint else ""

    @property
    def flags(self) -> dict[str, object]:
        """The settings that the command line gives."""
        return {name: self[name] for name in FLAGS if self.get(name) is not None}


def find_contradiction(config: str | None, *, dev: bool, lan: bool) -> str | None:
    """Return what is wrong with flags that exclude each other, as a clause; None if nothing is."""
    if config is None or not (dev or lan):
        return None
    flag = "--lan" if lan else "--dev"
    what = "for" if lan else ""
    mode = f"{what} development mode".strip()
    return f"{flag} is {mode}, which has no configuration: leave out {flag} or --config"


def makeService(options: Options) -> IService:
    """Read the configuration and make the service that twistd runs."""
    parent: Mapping[str, Any] = options.parent or {}
    in_foreground = bool(parent.get("nodaemon", True))
    # A configuration is that of a daemon, whose operator reloads it; else it is someone at work.
    is_at_terminal = in_foreground and options["config"] is None and is_bound_to_terminal()
    signals = Signals(parent.get("pidfile") or "", ends_on_hangup=is_at_terminal)
    signals.await_reactor()
    if options["lan"] and not in_foreground:
        raise SystemExit(
            "treedb: --lan prints a token, which needs the foreground: use treedb serve --lan, or "
            "twistd -n treedb --lan."
        )
    make = namedAny("treedbd.daemon.make_daemon")
    find_target = namedAny("treedbd.operating.log.find_target")
    daemon: IService = make(
        options["config"],
        options.flags,
        signals,
        accept_loss=bool(options["accept-loss"]),
        quiet=bool(options["quiet"]),
        in_foreground=in_foreground,
        is_lan=bool(options["lan"]),
        log_target=find_target(parent, in_foreground=in_foreground),
    )
    return daemon
