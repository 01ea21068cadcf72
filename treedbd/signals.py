"""What signals do to the daemon, from the moment its plugin is used to the end of the process.

SIGTERM and SIGINT end it with status 0. Before the reactor runs they end it at once: the stores
survive that as they survive a crash. SIGHUP reloads; one that comes too early is remembered until
the reactor runs. Where it means that the window was closed (`is_bound_to_terminal`), it ends the
daemon as SIGTERM does.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """The signal handlers of the process, and its last exit."""

    def __init__(self, pid_file: str = "", *, ends_on_hangup: bool = False) -> None:
        """`pid_file` is the file that twistd removes at an orderly end; empty for none."""
        self._pid_file = pid_file
        self._ends_on_hangup = ends_on_hangup
        self._must_reload = False

    def await_reactor(self) -> None:
        """Handle what comes before the reactor runs."""
        early = self._exit_on_signal if self._ends_on_hangup else self._remember_reload
        signal.signal(signal.SIGHUP, early)
        for stop in STOP_SIGNALS:
            signal.signal(stop, self._exit_on_signal)

    def follow_reactor(
        self, reactor: Any, stop: Callable[[], None], reload: Callable[[], None]
    ) -> None:
        """From now on call `stop` and `reload` in the reactor, as soon as it runs."""

        def in_reactor(call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
            return lambda _signal, _frame: reactor.callFromThread(call)

        signal.signal(signal.SIGHUP, in_reactor(stop if self._ends_on_hangup else reload))
        if self._must_reload:
            reactor.callWhenRunning(reload)
        for each in STOP_SIGNALS:
            signal.signal(each, in_reactor(stop))
            # Again when the reactor runs, in place of Twisted's own handlers, which would end
            # twistd by that signal instead of with status 0.
            reactor.callWhenRunning(signal.signal, each, in_reactor(stop))

    def follow_rotation(self, reactor: Any, reopen: Callable[[], None]) -> None:
        """Call `reopen` in the reactor at each SIGUSR1: a file of the log has been renamed."""
        signal.signal(signal.SIGUSR1, lambda _signal, _frame: reactor.callFromThread(reopen))

    def ignore(self) -> None:
        """Ignore further signals: the process is ending, and no handler can run in the end."""
        for stop in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(stop, signal.SIG_IGN)

    def exit(self, status: int = 0) -> NoReturn:
        """End the process now, whatever its threads are waiting for."""
        if self._pid_file:
            with contextlib.suppress(OSError):
                os.unlink(self._pid_file)
        os._exit(status)

    def _remember_reload(self, _signal: int, _frame: FrameType | None) -> None:
        self._must_reload = True

    def _exit_on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.exit()


def is_bound_to_terminal() -> bool:
    """Return whether a SIGHUP is that of the terminal, and nobody has asked to outlive it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False  # by nohup
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
