"""What the daemon says to the service manager: by datagrams, as systemd receives them."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
from collections.abc import Iterator, Sequence

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.closing import Closing
from tests.daemon import SERVE, TWISTD, Daemon
from tests.workers_of import worker_pids
from treedbd.daemon import ServiceManager

CONFIG = 'default_project = "shop"\n[projects.shop]\nrules_file = "rules.json"\n'
RULES = '{"rules": {".read": true}}'


class NotifySocket(Closing):
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.settimeout(60)

    def close(self) -> None:
        """Receive nothing any more."""
        self._socket.close()

    def receive(self) -> dict[str, str]:
        """Return the variables of the next message that is no sign of life."""
        while (message := self.receive_any()) == {"WATCHDOG": "1"}:
            pass
        return message

    def receive_any(self) -> dict[str, str]:
        """Return the variables of the next message."""
        lines = self._socket.recv(4096).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def receive_nothing(self) -> bool:
        """Return whether no message has arrived."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(60)
        return False


@pytest.fixture
def manager(tmp_path: pathlib.Path) -> Iterator[NotifySocket]:
    with NotifySocket(f"@treedb-test-{os.getpid()}-{tmp_path.name}") as bound:
        yield bound


def environment_of(manager: NotifySocket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, **more}


# The messages.


def test_variables_are_taken_out_of_the_environment(manager: NotifySocket) -> None:
    environment = environment_of(
        manager, WATCHDOG_USEC="1", WATCHDOG_PID="1", LISTEN_FDNAMES="a", LISTEN_FDS="1", HOME="/"
    )
    ServiceManager.from_environment(environment, Clock()).ready("Serving.")
    assert environment == {"HOME": "/"}
    assert manager.receive() == {"READY": "1", "STATUS": "Serving."}


def test_without_a_service_manager_nothing_is_sent_and_no_timer_runs() -> None:
    clock = Clock()
    alone = ServiceManager.from_environment({"WATCHDOG_USEC": "1000000"}, clock)
    alone.ready("Serving.")
    alone.reloading()
    alone.reloaded("Serving.")
    alone.stopping()
    assert clock.getDelayedCalls() == []


def test_signs_of_life_come_twice_in_the_time_that_is_allowed(manager: NotifySocket) -> None:
    clock = Clock()
    environment = environment_of(manager, WATCHDOG_USEC="10000000", WATCHDOG_PID=str(os.getpid()))
    watched = ServiceManager.from_environment(environment, clock)
    clock.advance(60)
    assert manager.receive_nothing()  # while it starts, systemd has another deadline
    watched.ready("Serving.")
    manager.receive()
    for _ in range(3):
        clock.advance(5)
        assert manager.receive_any() == {"WATCHDOG": "1"}
        assert manager.receive_nothing()
    watched.stopping()
    assert manager.receive() == {"STOPPING": "1", "STATUS": "Stopping."}
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}])
def test_who_is_not_watched_gives_no_signs(
    manager: NotifySocket, variables: dict[str, str]
) -> None:
    clock = Clock()
    ServiceManager.from_environment(environment_of(manager, **variables), clock).ready("Serving.")
    assert clock.getDelayedCalls() == []


def test_the_watchdog_of_another_process_is_not_served(manager: NotifySocket) -> None:
    clock = Clock()
    environment = environment_of(manager, WATCHDOG_USEC="1000000", WATCHDOG_PID="1")
    ServiceManager.from_environment(environment, clock).ready("Serving.")
    assert clock.getDelayedCalls() == []


def test_a_reload_before_the_daemon_is_ready_is_not_mentioned(manager: NotifySocket) -> None:
    starting = ServiceManager.from_environment(environment_of(manager), Clock())
    starting.reloading()
    starting.reloaded("Serving.")
    assert manager.receive_nothing()


def test_a_status_is_one_line(manager: NotifySocket) -> None:
    ServiceManager.from_environment(environment_of(manager), Clock()).ready("a\nREADY=0\x1b")
    assert manager.receive() == {"READY": "1", "STATUS": r"a\nREADY=0\x1b"}


def test_what_the_manager_has_no_room_for_is_sent_later_and_in_order(
    tmp_path: pathlib.Path,
) -> None:
    clock = Clock()
    with NotifySocket(str(tmp_path / "socket")) as full:
        other = ServiceManager.from_environment(environment_of(full), clock)
        for number in range(1000):  # the kernel keeps some, and the manager some
            other.ready(str(number))
            if clock.getDelayedCalls():
                break
        other.stopping()
        received = [full.receive()["STATUS"] for _ in range(number)]
        clock.advance(1)
        received += [full.receive()["STATUS"] for _ in range(2)]
        assert received == [*map(str, range(number + 1)), "Stopping."]
        assert clock.getDelayedCalls() == []


def test_a_manager_that_is_not_there_is_logged_once(tmp_path: pathlib.Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "nowhere")}
    with capturedLogs() as events:
        gone = ServiceManager.from_environment(environment, Clock())
        gone.ready("Serving.")
        gone.stopping()
    assert [each["reason"] for each in events if "reason" in each] == ["No such file or directory"]


# A daemon.


@pytest.mark.parametrize(
    ("program", "arguments"),
    [((str(TWISTD), "-n", "--pidfile=", "treedb"), ()), (SERVE, ("--workers", "2"))],
)
def test_the_daemon_says_when_it_is_ready_reloads_and_stops(
    tmp_path: pathlib.Path,
    manager: NotifySocket,
    program: Sequence[str],
    arguments: Sequence[str],
) -> None:
    (tmp_path / "rules.json").write_text(RULES)
    daemon = Daemon(
        tmp_path,
        config=CONFIG,
        environment=environment_of(manager, WATCHDOG_USEC="600000"),
        arguments=arguments,
        program=program,
    )
    with daemon:
        serving = f"Serving {' '.join(daemon.urls)}."
        assert manager.receive() == {"READY": "1", "STATUS": serving}
        assert daemon.request("GET", "/a.json").status == 200
        for pid in worker_pids(daemon):
            assert b"NOTIFY_SOCKET" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert b"WATCHDOG" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        for _ in range(3):
            assert manager.receive_any() == {"WATCHDOG": "1"}
        daemon.signal(signal.SIGHUP)
        message = manager.receive()
        assert (message["RELOADING"], message["STATUS"]) == ("1", "Reloading.")
        assert int(message["MONOTONIC_USEC"]) > 0
        assert manager.receive() == {"READY": "1", "STATUS": serving}
        (tmp_path / "rules.json").write_text("{")
        daemon.signal(signal.SIGHUP)
        assert manager.receive()["RELOADING"] == "1"
        failed = f"{serving} The last reload failed: see the log."
        assert manager.receive() == {"READY": "1", "STATUS": failed}
        daemon.signal(signal.SIGTERM)
        assert manager.receive() == {"STOPPING": "1", "STATUS": "Stopping."}
        assert daemon.wait() == 0


def test_a_daemon_that_cannot_start_is_never_ready(
    tmp_path: pathlib.Path, manager: NotifySocket
) -> None:
    daemon = Daemon(
        tmp_path,
        config=CONFIG,
        environment=environment_of(manager),
        arguments=("--workers", "2"),
    )
    assert daemon.run().returncode == 1  # there is no rules file
    assert manager.receive_nothing()
