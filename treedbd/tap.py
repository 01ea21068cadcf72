"""The command line of `twistd treedb`.

This module imports little, so that signals are handled soon after the process has begun; the rest
is imported by `makeService`. That runs before twistd daemonises, so it opens only the configuration
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from twisted.application.service import IService
from twisted.python.reflect import namedAny
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from treedbd.signals import Signals
from treedbd.text import in_one_line

FLAGS: Final = ("data", "engine", "listen", "reads", "workers")


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
        ("engine", "e", None, "The storage engine: sqlite, memory, or a URL postgresql://…"),
        ("reads", None, None, "With postgresql: strict, or local (may be late)."),
    )
    optFlags = (
        (
            "accept-loss",
            None,
            "Serve databases from which changes are missing, such as older copies.",
        ),
    )

    def opt_listen(self, endpoint: str) -> None:
        """Listen on this endpoint, such as tcp:8080:interface=127.0.0.1; may be repeated."""
        self.setdefault("listen", []).append(endpoint)

    opt_l = opt_listen

    def opt_workers(self, number: str) -> None:
        """Run this number of worker processes, or one for each core (auto)."""
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


def makeService(options: Options) -> IService:
    """Read the configuration and make the service that twistd runs."""
    parent: Mapping[str, Any] = options.parent or {}
    signals = Signals(parent.get("pidfile") or "")
    signals.await_reactor()
    in_foreground = bool(parent.get("nodaemon", True))
    make = namedAny("treedbd.daemon.make_daemon")
    daemon: IService = make(
        options["config"],
        options.flags,
        signals,
        accept_loss=bool(options["accept-loss"]),
        in_foreground=in_foreground,
    )
    return daemon
