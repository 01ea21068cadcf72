"""Rounds of presence: a client comes online and ends in one of many ways; what it left is written.

The same rounds are run by a test, a few of each way, and by `bench/presence.py`, many.
"""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.closing import Closing
from tests.daemon import Daemon
from tests.presence_client import Address, come_online
from tests.realtime import RealtimeClient
from tests.rest import OPEN_RULES, Client
from tests.system import wait_until
from tests.tcp_proxy import TcpProxy
from tests.websocket import TARGET

KEEP_ALIVE_S: Final = 1.0
CONFIG: Final = f"""
default_project = "shop"
[streams]
keep_alive_s = {KEEP_ALIVE_S}
[projects.shop]
rules_file = "open.json"
"""
ROOT: Final = pathlib.Path(__file__).parent.parent


class PresenceRounds(Closing):
    """A daemon, and clients that come and go."""

    def __init__(self, folder: pathlib.Path, *arguments: str) -> None:
        """Start the daemon with more arguments."""
        (folder / "open.json").write_text(OPEN_RULES)
        self._daemon: Final = Daemon(folder, config=CONFIG, arguments=arguments)
        self._daemon.start()
        self._count = 0

    def close(self) -> None:
        """Kill the daemon."""
        self._daemon.close()

    @property
    def log(self) -> str:
        """The log of the daemon."""
        return self._daemon.log

    def run(self, end: str) -> float:
        """Run a round; return how many seconds it took until `online` was right."""
        self._count += 1
        path = f"{end}/{self._count}"
        with contextlib.ExitStack() as stack:
            began = ENDS[end](self, path, stack)
            self._await(path, {"online": False, "ends": 1})
            took = time.monotonic() - began
        self._check_online_again(path)
        return took

    def _check_online_again(self, path: str) -> None:
        """Check that a client that is back stays online: nothing is written a second time."""
        with RealtimeClient(self._address()) as client:
            client.put(f"{path}/online", True)
            client.put("barrier", self._count)
            assert self._read(path) == {"online": True, "ends": 1}

    def _close(self, path: str, _: contextlib.ExitStack) -> float:
        with RealtimeClient(self._address()) as client:
            come_online(client, path)
            return time.monotonic()

    def _leave(self, path: str, _: contextlib.ExitStack) -> float:
        with RealtimeClient(self._address()) as client:
            come_online(client, path)
            began = time.monotonic()
            client.leave()
        return began

    def _kill(self, path: str, _: contextlib.ExitStack) -> float:
        command = [sys.executable, "-m", "tests.presence_client", str(self._port), path]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "online\n"
            process.kill()
            return time.monotonic()

    def _cut(self, path: str, stack: contextlib.ExitStack) -> float:
        proxy = stack.enter_context(TcpProxy(self._port))
        client = stack.enter_context(RealtimeClient(Address(proxy.port)))
        come_online(client, path)
        proxy.block()
        return time.monotonic()

    def _come_back(self, path: str, stack: contextlib.ExitStack) -> float:
        former = stack.enter_context(RealtimeClient(self._address()))
        come_online(former, path)
        began = time.monotonic()
        target = f"{TARGET}&ls={former.session}"
        with RealtimeClient(self._address(), target) as client:
            assert client.get(f"{path}/online") is False
        return began

    def _stop(self, path: str, stack: contextlib.ExitStack) -> float:
        return self._restart(path, stack, self._daemon.stop)

    def _crash(self, path: str, stack: contextlib.ExitStack) -> float:
        return self._restart(path, stack, self._daemon.kill)

    def _restart(self, path: str, stack: contextlib.ExitStack, end: Callable[[], object]) -> float:
        """End the daemon; at its first answer after the start `online` has to be right."""
        client = stack.enter_context(RealtimeClient(self._address()))
        come_online(client, path)
        end()
        self._daemon.start()
        began = time.monotonic()
        assert self._read(path) == {"online": False, "ends": 1}
        return began

    @property
    def _port(self) -> int:
        port = self._daemon.port
        assert port is not None
        return port

    def _address(self) -> Address:
        return Address(self._port)

    def _read(self, path: str) -> Any:
        with Client(self._daemon) as client:
            return client.get(f"/{path}.json")

    def _await(self, path: str, expected: Any) -> None:
        wait_until(lambda: self._read(path) == expected)


ENDS: Final[dict[str, Callable[[PresenceRounds, str, contextlib.ExitStack], float]]] = {
    "closed": PresenceRounds._close,
    "left": PresenceRounds._leave,
    "killed": PresenceRounds._kill,
    "cut": PresenceRounds._cut,
    "back": PresenceRounds._come_back,
    "stopped": PresenceRounds._stop,
    "crashed": PresenceRounds._crash,
}
