"""Signals before the reactor runs, when it runs, and the last exit."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from treedbd.process import STOP_SIGNALS, Signals

STARTING = (
    "import os, signal, sys\n"
    "from treedbd.tap import Options, makeService\n"
    "options = Options()\n"
    "options.parent = {'pidfile': 'pid', 'nodaemon': True}\n"
    "options.parseOptions([])\n"
    "makeService(options)\n"
    "open('pid', 'w').close()\n"
    "os.kill(os.getpid(), int(sys.argv[1]))\n"
    "print('alive')\n"
)


@pytest.mark.parametrize(
    ("number", "output"), [(signal.SIGTERM, ""), (signal.SIGINT, ""), (signal.SIGHUP, "alive\n")]
)
def test_before_the_reactor_runs_no_signal_ends_it_with_another_status_than_0(
    tmp_path: pathlib.Path, number: signal.Signals, output: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTING, str(int(number))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    assert (tmp_path / "pid").exists() is (number is signal.SIGHUP)


def test_the_command_line_is_parsed_before_the_program_is_loaded() -> None:
    program = (
        "import sys, treedbd.tap\n"
        "assert 'treedbd.service' not in sys.modules\n"
        "assert 'klein' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class FakeReactor:
    """Records what is to be called, and calls it when the test says that it runs."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def callWhenRunning(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.waiting.append(lambda: call(*arguments))

    def callFromThread(self, call: Callable[[], Any]) -> None:
        self.waiting.append(call)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The handlers that were set, by signal; those of the tests' own process stay."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    return handlers


def test_a_reload_that_comes_too_early_is_done_once_the_reactor_runs(
    handlers: dict[int, Any],
) -> None:
    signals, reactor, calls = Signals(), FakeReactor(), list[str]()
    signals.await_reactor()
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    signals.follow_reactor(reactor, lambda: calls.append("stop"), lambda: calls.append("reload"))
    assert calls == []
    reactor.run()
    assert calls == ["reload"]
    handlers[signal.SIGHUP](signal.SIGHUP, None)
    reactor.run()
    assert calls == ["reload", "reload"]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_between_the_start_and_the_reactor_is_not_lost(
    handlers: dict[int, Any], number: signal.Signals
) -> None:
    signals, reactor, calls = Signals(), FakeReactor(), list[str]()
    signals.await_reactor()
    signals.follow_reactor(reactor, lambda: calls.append("stop"), lambda: calls.append("reload"))
    handlers[number](number, None)
    handlers[number] = None  # as Twisted's own handlers replace it when the reactor begins
    reactor.run()
    assert calls == ["stop"]
    handlers[number](number, None)
    reactor.run()
    assert calls == ["stop", "stop"]


def test_in_the_end_every_signal_is_ignored(handlers: dict[int, Any]) -> None:
    Signals().ignore()
    assert handlers == dict.fromkeys((*STOP_SIGNALS, signal.SIGHUP), signal.SIG_IGN)
