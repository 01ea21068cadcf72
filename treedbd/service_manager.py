"""What the daemon says to the service manager that has started it, and takes from it.

The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): datagrams of lines to the socket
that NOTIFY_SOCKET names. Without that variable nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.errors import in_one_line

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_PASSED_SOCKETS: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_RETRY_S: Final = 0.1
_MAX_WAITING: Final = 100

_log = Logger()


class ServiceManager:
    """The service manager, or nobody."""

    def __init__(self, address: str, watchdog_s: float, clock: IReactorTime) -> None:
        """Send to the Unix socket `address`, which is empty for none and may be abstract (`@`).

        `watchdog_s` is how long the daemon may give no sign of life, 0 for ever.
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
        """Return the one that the environment names, and take what is for this process out of it.

        A child process must neither speak for this one nor believe that sockets were passed to it.
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
        """Say that the daemon serves, and from now on, as often as is wanted, that it is alive.

        The reactor sends these signs of life, so they end when it does not turn.
        """
        self._is_ready = True
        self._send("READY=1", _status(status))
        if self._watchdog_s and self._address:
            self._next_sign = self._clock.callLater(0, self._give_sign)

    def reloading(self) -> None:
        """Say that a reload begins; nothing if the daemon is not ready yet."""
        if self._is_ready:
            now_us = time.monotonic_ns() // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", _status("Reloading."))

    def reloaded(self, status: str) -> None:
        """Say that a reload is over; nothing if the daemon is not ready yet."""
        if self._is_ready:
            self._send("READY=1", _status(status))

    def stopping(self) -> None:
        """Say that the daemon stops."""
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
        """Send what waits, in order; later, what the manager has no room for now."""
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
