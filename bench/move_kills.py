"""Moves between files and PostgreSQL that are killed at any moment, judged by what is read then.

    .venv/bin/python bench/move_kills.py [--rounds N] [--sizes BYTES,BYTES,…] [--kills N]
        [--seed N]

Each round imports a value of each size into a data directory, moves it into PostgreSQL and back
into another directory. Each of these moves is killed (SIGKILL), N times, after a random time or
when it reaches one of its steps, and run again to its end; in some rounds it is undone between. The
daemon of the source runs and is written all the time, but in some rounds of a move from files. So
does a daemon over PostgreSQL, before anything is there.

At every moment the target has nothing or all, also every acknowledged write, and then the source
refuses writes; what the source serves is all. A daemon over files that were moved does not start.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import pathlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from killed_commands import END, KilledCommands, Moment, check, choose_moment, make_members
from servers import LISTEN

from tests.daemon import Daemon
from tests.postgresql import PostgresqlServers, servers
from tests.rest import OPEN_RULES

CONFIG: Final = (
    'data = "data"\ndefault_project = "shop"\n[projects.shop]\nrules_file = "open.json"\n'
)
_MOVING: Final = "treedbd.cli.moving:"
_POSTGRESQL: Final = "treedbd.store.postgresql."
_ALWAYS: Final = (
    *("pathlib:Path.rename", "pathlib:Path.replace", "pathlib:Path.unlink"),
    f"{_POSTGRESQL}moving:commit_confirmed",
)
IN_STEPS: Final = (
    *(
        _MOVING + name
        for name in (
            *("stage", "compare_all", "LockTakeover", "switch", "remove_left_over"),
            *("_InwardMove.prepare", "_InwardMove.complete", "_InwardMove.mark"),
        )
    ),
    f"{_POSTGRESQL}moving:_put_rules",
    f"{_POSTGRESQL}moving:_name",
    _MOVING + "repair",
    "treedbd.store.directory_lock:_replace",
    "treedbd.store.directory_lock:LockTakeover.release",
    *_ALWAYS,
)
OUT_STEPS: Final = (
    *(
        _MOVING + name
        for name in (
            *("_OutwardMove._bring", "_OutwardMove._verify", "_OutwardMove._put_in_place"),
            *("freeze", "_finish", "sync_directory", "DirectoryLock"),
        )
    ),
    *_ALWAYS,
)
PATIENCE_S: Final = 20.0


class MoveRounds:
    """Rounds with one PostgreSQL.

    Attributes:
        commands: the commands that are run.
        accepted: how many writes were acknowledged while moves ran, or after they were killed.
        refused: how many were refused.

    """

    def __init__(
        self, folder: pathlib.Path, server: PostgresqlServers, seed: int, kills: int
    ) -> None:
        self.commands = KilledCommands()
        self.accepted = self.refused = 0
        self._folder = folder
        self._server = server
        self._kills = kills
        self._chance = random.Random(seed)
        self._members: dict[str, Any] = {}

    def run(self, size: int) -> None:
        """Move a value of some size to PostgreSQL and back."""
        self._server.primary.query("DROP SCHEMA IF EXISTS treedb CASCADE")
        self._members = {"first": 1, **make_members(size, self._chance.choice("xyz"))}
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = pathlib.Path(name)
            files, cluster, back = (folder / each for each in ("files", "cluster", "back"))
            for place in (files, cluster, back):
                self._configure(place, is_cluster=place is cluster)
            self._import(folder / "x.json", files)
            with _serve(cluster) as daemon:
                self._move_in(files, cluster, daemon)
                self._check_whole(daemon)
                self._move_out(cluster, back, daemon)
            with _serve(back) as daemon:
                self._check_whole(daemon)

    def _move_in(self, files: pathlib.Path, cluster: pathlib.Path, new: Daemon) -> None:
        is_served = self._chance.random() < 0.7
        with _serve(files) if is_served else contextlib.nullcontext() as old:
            self._move(IN_STEPS, files, cluster, old, lambda: _has_value(new))
        status = Daemon(files, config=_config(files), listen=[LISTEN]).run().returncode
        check(status == 1, "a daemon of files that were moved has started")

    def _move_out(self, cluster: pathlib.Path, back: pathlib.Path, old: Daemon) -> None:
        self._move(OUT_STEPS, cluster, back, old, lambda: any((back / "data").glob("*/*.shelf")))

    def _move(
        self,
        steps: Sequence[str],
        source: pathlib.Path,
        target: pathlib.Path,
        old: Daemon | None,
        has_arrived: Callable[[], bool],
    ) -> None:
        words = ("move", "--config", source / "treedb.toml", "--to", target / "treedb.toml")

        def write() -> bool:
            """Write to the source; return whether it was acknowledged."""
            is_there = has_arrived()
            is_accepted = old is not None and self._write(old)
            check(not (is_there and is_accepted), "the source accepts a write after the move")
            return is_accepted

        for moment in (*(self._moment(steps) for _ in range(self._kills)), END):
            status = self.commands.run(*words, moment=moment, meanwhile=write)
            check(status in (None, 0), self.commands.errors)
            write()
            if old is not None:
                self._check_whole(old)
            if status is None and self._chance.random() < 0.3:
                self._undo(words, write if old is not None else None, has_arrived)
        check(has_arrived(), "a move that has ended has moved nothing")

    def _undo(
        self,
        words: tuple[str | pathlib.Path, ...],
        write: Callable[[], bool] | None,
        has_arrived: Callable[[], bool],
    ) -> None:
        """Undo a move that was killed: the source accepts writes again, unless all was moved."""
        status = self.commands.run(*words, "--undo")
        check(status == int(has_arrived()), f"undone: {status} {self.commands.errors}")
        end = time.monotonic() + PATIENCE_S
        while status == 0 and write is not None and not write():
            check(time.monotonic() < end, "the source refuses writes after --undo")
            time.sleep(0.05)

    def _moment(self, steps: Sequence[str]) -> Moment:
        return choose_moment(self._chance, steps, 0)

    def _write(self, daemon: Daemon) -> bool:
        """Write a member; return whether it was acknowledged, and remember it then."""
        key = f"w{self.accepted}"
        try:
            status = daemon.request("PUT", f"/t/{key}.json", "1").status
        except (OSError, http.client.HTTPException) as error:
            check(False, f"a write: {error!r}")
        check(status in (200, 503), f"a write: {status}")
        if status == 200:
            self._members[key] = 1
            self.accepted += 1
        else:
            self.refused += 1
        return status == 200

    def _check_whole(self, daemon: Daemon) -> None:
        found = daemon.request("GET", "/t.json")
        check(found.status == 200, f"a read: {found.status} {found.body[:200]!r}")
        check(found.json == self._members, f"{len(found.json or ())} of {len(self._members)}")

    def _configure(self, place: pathlib.Path, *, is_cluster: bool) -> None:
        place.mkdir()
        (place / "open.json").write_text(OPEN_RULES)
        line = f'engine = "{self._server.dsn}"\n' if is_cluster else ""
        (place / "treedb.toml").write_text(line + CONFIG)

    def _import(self, file: pathlib.Path, place: pathlib.Path) -> None:
        file.write_text(json.dumps(self._members))
        words = ("--config", place / "treedb.toml", "--data", place / "data")
        status = self.commands.run("import", file, "http://localhost/t", *words)
        check(status == 0, self.commands.errors)


def _config(place: pathlib.Path) -> str:
    return (place / "treedb.toml").read_text()


@contextlib.contextmanager
def _serve(place: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(place, config=_config(place), listen=[LISTEN]) as daemon:
        yield daemon


def _has_value(daemon: Daemon) -> bool:
    found = daemon.request("GET", "/t.json?shallow=true&limitToFirst=1")
    check(found.status == 200, f"a read: {found.status} {found.body[:200]!r}")
    return found.json is not None


def main() -> None:
    """Run the rounds; exit with 1 at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="0,1000,100000,3000000,30000000,300000000")
    parser.add_argument("--kills", type=int, default=3, help="of each move, before its end")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, servers(standbys=0) as server:
        rounds = MoveRounds(pathlib.Path(folder), server, chosen.seed, chosen.kills)
        for size in map(int, chosen.sizes.split(",")):
            rounds.commands, rounds.accepted, rounds.refused = KilledCommands(), 0, 0
            for _ in range(chosen.rounds):
                rounds.run(size)
            writes = f"{rounds.accepted} writes kept, {rounds.refused} refused"
            counts = f"{chosen.rounds} rounds, {rounds.commands.describe()}"
            print(f"{size:>11,} bytes: {counts}; {writes}, nothing lost", flush=True)


if __name__ == "__main__":
    main()
