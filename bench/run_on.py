"""`treedb run --on` under failures: each event at least once, in the order of its path.

Values are written to many paths while the run and the daemon are killed (SIGKILL) at random
moments, one of them or both. The command fails at the first attempt of one event in so many, and
hangs at that of some others. What the commands have done is compared with what was written: each
event was run, the events of a path in their order, and only as many of them twice as were under way
when the run was killed.

    .venv/bin/python bench/run_on.py [--events N] [--paths N] [--kills N] [--seed N]
"""

from __future__ import annotations

import argparse
import http.client
import json
import pathlib
import random
import signal
import tempfile
import threading
import time
from typing import Final

from tests.access import admin, at, write_secret
from tests.command import RunningCommand
from tests.daemon import Daemon
from tests.system import find_port

CONFIG: Final = '[projects.cli]\nsecret_files = ["cli.secret"]\n'
ADMIN: Final = admin("cli")
COMMAND: Final = """
n=${TREEDB_EVENT_ID%/*}; n=${n##*/}
if [ "$TREEDB_ATTEMPT" = 1 ]; then
    [ $((n % FAIL)) != 0 ] || exit 1
    [ $((n % HANG)) != 1 ] || sleep 60
fi
echo "$TREEDB_PATH $n" >> "$0"
"""
TIMEOUT_S: Final = 2
_LOOK_S: Final = 0.1


class Writer(threading.Thread):
    """Writes values that are all different, each until it is acknowledged."""

    def __init__(self, port: int, events: int, paths: int) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self._port = port
        self._events, self._paths = events, paths
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Write all of them."""
        while self.written < self._events:
            try:
                self._write(self.written)
            except (OSError, http.client.HTTPException):
                self._connection = None
                time.sleep(_LOOK_S)
            else:
                self.written += 1

    def _write(self, number: int) -> None:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port)
        path = at(f"/orders/p{number % self._paths}.json", ADMIN, ns="cli", print="silent")
        self._connection.request("PUT", path, json.dumps(number))
        response = self._connection.getresponse()
        response.read()
        if response.status != 204:
            raise http.client.HTTPException


class Trial:
    """A daemon and a run that are killed."""

    def __init__(self, folder: pathlib.Path, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        write_secret(folder, "cli")
        self._port = find_port()
        listen = [f"tcp:{self._port}:interface=127.0.0.1"]
        self._daemon = Daemon(folder, config=CONFIG, listen=listen)
        self._log = folder / "log"
        self._log.touch()
        self._cursor = folder / "cursor"
        self._run: RunningCommand | None = None
        self.run_kills = self.daemon_kills = 0

    def close(self) -> None:
        """Kill what runs."""
        if self._run is not None:
            self._run.close()
        self._daemon.close()

    def work(self) -> float:
        """Write, kill, and wait until all is done; return the seconds."""
        options = self._options
        self._daemon.start()
        self._start()
        assert self._run is not None
        self._run.errors.next()
        began = time.monotonic()
        writer = Writer(self._port, options.events, options.paths)
        writer.start()
        for number in range(options.kills):
            share = options.events * (number + 1) / (options.kills + 1)
            while len(self.done()) < share:
                time.sleep(_LOOK_S)
            self._kill()
        while len(set(self.done())) < options.events:
            time.sleep(_LOOK_S)
        took = time.monotonic() - began
        self._run.signal(signal.SIGTERM)
        assert self._run.wait() == 0
        return took

    def done(self) -> list[tuple[str, int]]:
        """Return what commands have done: paths, and numbers of writes."""
        lines = self._log.read_text().splitlines()
        return [(path, int(number)) for path, number in map(str.split, lines)]

    def _start(self) -> None:
        options = self._options
        command = COMMAND.replace("FAIL", str(options.fail)).replace("HANG", str(options.hang))
        words = ("run", "--url", f"http://127.0.0.1:{self._port}/?ns=cli", "--on", "/orders/$id")
        limits = ("--concurrency", str(options.concurrency), "--timeout", str(TIMEOUT_S))
        command_words = ("--", "sh", "-c", command, str(self._log))
        self._run = RunningCommand(
            *words, "--cursor", str(self._cursor), *limits, *command_words, token=ADMIN
        )

    def _kill(self) -> None:
        kind = self._chance.choice(("run", "daemon", "both"))
        if kind != "daemon" and self._run is not None:
            self._run.close()
            self.run_kills += 1
        if kind != "run":
            self._daemon.kill()
            self.daemon_kills += 1
        if kind != "daemon":
            self._start()
        if kind != "run":
            self._daemon.start()


def check(done: list[tuple[str, int]], events: int, most_repeated: int) -> int:
    """Return how many were run twice; raise AssertionError for what is missing, or out of order."""
    assert len(set(done)) == events, (len(set(done)), events)
    last: dict[str, int] = {}
    for path, number in done:
        assert number >= last.get(path, 0), (path, number)
        last[path] = number
    repeated = len(done) - events
    assert repeated <= most_repeated, repeated
    return repeated


def main() -> None:
    """Run a trial, and print what there was."""
    parser = argparse.ArgumentParser(description="Kill treedb run and its daemon.")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--paths", type=int, default=200)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--fail", type=int, default=20, help="one event in so many fails once")
    parser.add_argument("--hang", type=int, default=500, help="one in so many hangs once")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(pathlib.Path(folder), options)
        try:
            took = trial.work()
            done = trial.done()
        finally:
            trial.close()
    repeated = check(done, options.events, trial.run_kills * options.concurrency)
    print(
        f"{options.events} events in order in {took:.1f} s, {options.events / took:.0f} a second; "
        f"{trial.run_kills} kills of the run, {trial.daemon_kills} of the daemon; "
        f"{repeated} events were run twice"
    )


if __name__ == "__main__":
    main()
