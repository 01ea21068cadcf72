"""A base as the response to a standby: read by a process of its own, sent as the standby reads.

The process (`base_process`) compresses all rows of the database, for which the daemon would have to
pause. What it prints goes through a pipe, a few pieces ahead of the transport, so memory is bounded
and the process waits for a slow standby. A response that is cut off is seen at the standby: a base
has a footer.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
from typing import Any, Final

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from treedbd.database.runtime import in_own_thread
from treedbd.http1.request import IHttp1Request
from treedbd.limits import KIB

PIECE_BYTES: Final = 256 * KIB
AHEAD: Final = 4
"""Pieces that are read and not sent at most."""
_MODULE: Final = "treedbd.standby.base_process"


@implementer(IPushProducer)
class BaseStream:
    """The response with a base; also the producer of its transport."""

    _log = Logger()

    def __init__(self, request: IHttp1Request, reactor: Any) -> None:
        """Send nothing yet."""
        self._request, self._reactor = request, reactor
        self._is_open = True
        self._is_paused = False
        self._pieces: list[bytes] = []
        self._free = threading.Semaphore(AHEAD)
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, file: pathlib.Path, db: str, time_ms: int) -> None:
        """Send the base of a database, whose head has been sent."""
        self._request.notifyFinish().addBoth(self._close)
        if not self._is_open:
            return
        self._request.registerProducer(self, True)
        command = [sys.executable, "-m", _MODULE, str(file.absolute()), db, str(time_ms)]
        reading = in_own_thread(self._reactor, lambda: self._read(command), "base")
        reading.addCallbacks(self._finish, self._fail)

    def pauseProducing(self) -> None:
        """Stop sending for now."""
        self._is_paused = True

    def resumeProducing(self) -> None:
        """Send what has been read."""
        self._is_paused = False
        while self._pieces and not self._is_paused and self._is_open:
            self._send(self._pieces.pop(0))

    def stopProducing(self) -> None:
        """End: the connection is gone."""
        self._close(None)

    def _read(self, command: list[str]) -> bytes:
        """Read all that the process prints; return what it says if it fails. In a thread."""
        with subprocess.Popen(  # noqa: S603 - a module of this package, without a shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            self._process = process
            assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
            while self._is_open and (piece := process.stdout.read(PIECE_BYTES)):
                self._free.acquire()
                self._reactor.callFromThread(self._received, piece)
            if not self._is_open:
                process.terminate()
            problem = process.stderr.read()
        return b"" if process.returncode == 0 else problem or b"The process was ended."

    def _received(self, piece: bytes) -> None:
        if self._is_paused or self._pieces:
            self._pieces.append(piece)
        else:
            self._send(piece)

    def _send(self, piece: bytes) -> None:
        self._free.release()
        if self._is_open:
            self._request.write(piece)

    def _finish(self, problem: bytes) -> None:
        if not self._is_open:
            return
        if problem:
            text = problem.decode("utf-8", "replace").strip()
            self._log.error("A base could not be read for a standby: {text}", text=text)
            self._request.abort("failed")
            return
        for piece in self._pieces:
            self._request.write(piece)
        self._close(None)
        self._request.unregisterProducer()
        self._request.finish()

    def _fail(self, failure: Any) -> None:
        self._log.failure("A base could not be read for a standby.", failure)
        if self._is_open:
            self._request.abort("failed")

    def _close(self, _: object) -> None:
        """End the process, and what waits for it."""
        self._is_open = False
        self._pieces.clear()
        for _number in range(AHEAD):
            self._free.release()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
