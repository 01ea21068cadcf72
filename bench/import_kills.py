"""Imports or migrations that are killed at any moment, judged by what a plain read shows then.

    .venv/bin/python bench/import_kills.py [--command faults|import|migrate] [--rounds N]
                                           [--sizes BYTES,BYTES,…] [--seed N]

Each round of `faults` and `import` writes a value below a daemon, or into a data directory whose
daemon does not run, and imports a file of each size over it (`--replace`) or into it (`--merge`).
Each command is killed (SIGKILL) after a random time, or when it reaches one of its steps, and then
run to its end.

A file that is not valid (`faults`, a round for each kind) must leave the value that was there. A
valid one (`import`) must leave that value, or members of the file and of what is kept and nothing
else, also when it is killed again while it goes on, and at the end the file. Before the end it may
be changed: it must never be mixed with what was sent before. Or it becomes one that is not valid:
then all is left as it is.

Each round of `migrate` writes a value into the target, and starts `treedb migrate --once --replace`
of a database of each size, kills it likewise, and so twice more; then it is run to its end. The
source must be what it was, the target members of both and nothing else, and at the end the source.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import random
import tempfile
import urllib.request
from collections.abc import Sequence
from typing import Any

from killed_commands import (
    END,
    TREEDB,
    KilledCommands,
    Moment,
    check,
    choose_moment,
    make_members,
)
from servers import LISTEN, serve

from tests.cli.loading.faulty_files import FAULTS

BEFORE = {"old": {"a": 1}}
MODES = ("--replace", "--merge")
ONE_WRITE_BYTES = 16 * 2**20
_LOADING = "treedbd.cli.loading."
_STEPS = (
    _LOADING + "importing:ResumeFile._save",
    _LOADING + "importing:ResumeFile.remove",
    "os:fsync",
    "os:replace",
)
ONLINE_STEPS = (
    *_STEPS,
    *(f"{_LOADING}transfer:Sender.{name}" for name in ("remove", "replace", "write")),
    _LOADING + "importing:_PartQueue._record",
)
OFFLINE_STEPS = (
    *_STEPS,
    _LOADING + "importing:StoreWriter._remove",
    _LOADING + "importing:StoreWriter._add",
    "treedbd.store.shelf:WritingStore.commit",
    "treedbd.store.shelf:WritingStore.close",
)
MIGRATION_STEPS = (
    "treedbd.cli.migrate:_copy_rules",
    *(
        f"treedbd.cli.migrate:Copying.{name}"
        for name in ("copy", "_copy_children", "_write_children", "_write", "_remove_others")
    ),
)


class Rounds:
    """Rounds with one daemon and one data directory beside it."""

    def __init__(self, folder: pathlib.Path, base: str, seed: int) -> None:
        self.commands = KilledCommands()
        self._folder = folder
        self._base = base
        self._chance = random.Random(seed)
        names = self._chance.sample(sorted(FAULTS), len(FAULTS))
        self._faults = itertools.cycle(FAULTS[name] for name in names)
        self._lines = [FAULTS[name] for name in names if FAULTS[name].name == "x.json"]
        self._url = ""
        self._more: Sequence[str | pathlib.Path] = ()

    def faults(self, size: int) -> None:
        """Import a file with one fault."""
        fault = next(self._faults)
        self._choose_target()
        mode = self._chance.choice(MODES)
        file = self._folder / fault.name
        file.write_bytes(fault.make(size))
        for moment in (self._moment(size, ()), END):
            status = self._import(file, mode, moment=moment)
            check(status is None or bool(status) == fault.is_refused(mode), self.commands.errors)
            check(self._read() == BEFORE, f"{fault} of {size} bytes, {mode} {self._more}: changed")
        self._check_no_record()
        file.unlink()

    def imports(self, size: int) -> None:
        """Import a valid file, which may change meanwhile."""
        self._choose_target()
        mode = self._chance.choice(MODES)
        file, members = self._folder / "x.json", make_members(size, "x")
        file.write_text(json.dumps(members))
        kept: dict[str, Any] = BEFORE if mode == "--merge" else {}
        steps = OFFLINE_STEPS if self._more else ONLINE_STEPS
        found: Any = None
        for _ in range(2):
            self._import(file, mode, moment=self._moment(size, steps))
            found = self._read()
            is_one_write = size <= ONE_WRITE_BYTES and mode == "--replace"
            is_right = (found or {}) == members or not is_one_write
            is_right = is_right and is_part(found, {**kept, **members}, kept)
            check(found == BEFORE or is_right, f"a file of {size} bytes, {mode}: mixed")
        sent = {**kept, **members}
        turn = self._chance.choice(("the same", "changed", "not valid"))
        if turn == "not valid":
            file.write_bytes(self._chance.choice(self._lines).make(size))
            check(self._import(file, mode) == 1, "a file that became one that is not valid")
            self._check_nothing_new(found, sent, f"{size} bytes that became not valid, {mode}")
        if turn != "the same":
            members = make_members(size, "y")
            file.write_text(json.dumps(members))
        if self._import(file, mode) != 0:
            check(turn == "changed", self.commands.errors)
            self._check_nothing_new(found, sent, f"a changed file of {size} bytes, {mode}")
            check(self._import(file, mode, "--restart") == 0, self.commands.errors)
        wanted = {**kept, **members} or None
        check(self._read() == wanted, f"a file of {size} bytes, {mode}: not what was imported")
        self._check_no_record()

    def _check_nothing_new(self, found: Any, sent: dict[str, Any], name: str) -> None:
        """Check that a refused run has written nothing since the target was `found`.

        What a killed run had sent may have been committed since.
        """
        now = self._read()
        is_right = now == found or is_part(now, sent, {} if found == BEFORE else found)
        check(is_right, f"{name}: changed")

    def migrations(self, size: int) -> None:
        """Migrate a database."""
        file, token = self._folder / "x.json", self._folder / "token"
        token.write_text("owner")
        members = make_members(size, self._chance.choice("xyz"))
        file.write_text(json.dumps(members))
        source, target = f"{self._base}/?ns=source", f"{self._base}/?ns=target"
        put(source, {})
        put(target, BEFORE)
        check(self.commands.run("import", file, source) == 0, self.commands.errors)
        words = ("migrate", source, target, "--once", "--replace")
        tokens = ("--source-token-file", token, "--token-file", token)
        found: Any = None
        for moment in (*(self._moment(size, MIGRATION_STEPS) for _ in range(3)), END):
            status = self.commands.run(*words, *tokens, moment=moment)
            check(status in (None, 0), self.commands.errors)
            check(read(source) == (members or None), f"a source of {size} bytes: changed")
            found = read(target)
            check(is_part(found, {**BEFORE, **members}), f"a target of {size} bytes: mixed")
        check(found == (members or None), f"a target of {size} bytes: not what the source has")

    def _moment(self, size: int, steps: Sequence[str]) -> Moment:
        return choose_moment(self._chance, steps, size)

    def _choose_target(self) -> None:
        """Choose the daemon or the data directory beside it, and let `BEFORE` be there."""
        if self._chance.random() < 0.5:
            self._url, self._more = f"{self._base}/t?ns=demo", ()
            put(self._url, BEFORE)
            return
        self._url, self._more = "http://localhost/t", ("--data", self._folder / "stopped")
        file = self._folder / "before.json"
        file.write_text(json.dumps(BEFORE))
        check(self._import(file, "--replace") == 0, self.commands.errors)

    def _import(self, file: pathlib.Path, *more: str, moment: Moment = END) -> int | None:
        return self.commands.run("import", file, self._url, *self._more, *more, moment=moment)

    def _read(self) -> Any:
        if not self._more:
            return read(self._url)
        file = self._folder / "exported.json"
        status = self.commands.run("export", self._url, file, *self._more)
        check(status == 0, self.commands.errors)
        return json.loads(file.read_bytes())

    def _check_no_record(self) -> None:
        check(not list(self._folder.glob(".x.*")), "a record of an import was left")


COMMANDS = {"faults": Rounds.faults, "import": Rounds.imports, "migrate": Rounds.migrations}


def main() -> None:
    """Run the rounds; exit with 1 at the first read that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--command", choices=COMMANDS, default="import")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="0,1000,100000,3000000,30000000,300000000")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = (*TREEDB, "serve", "--dev", "-l", LISTEN, "--data", str(folder / "d"))
        with serve(*command) as ready:
            rounds = Rounds(folder, ready.split()[-1].rstrip("/"), chosen.seed)
            for size in map(int, chosen.sizes.split(",")):
                rounds.commands = KilledCommands()
                for _ in range(chosen.rounds):
                    COMMANDS[chosen.command](rounds, size)
                counts = f"{chosen.rounds} rounds, {rounds.commands.describe()}"
                print(f"{size:>11,} bytes: {counts}, every read was right", flush=True)


def is_part(found: Any, members: dict[str, Any], least: dict[str, Any] | None = None) -> bool:
    """Return whether some of `members` were found and nothing else, with all of `least`."""
    items = (found or {}).items()
    return items <= members.items() and (least or {}).items() <= items


def put(url: str, value: Any) -> None:
    """Write a value at a URL as the commands take it."""
    request = urllib.request.Request(_to_json(url), json.dumps(value).encode(), method="PUT")
    urllib.request.urlopen(request).close()


def read(url: str) -> Any:
    """Return the value at such a URL."""
    with urllib.request.urlopen(_to_json(url)) as response:
        return json.load(response)


def _to_json(url: str) -> str:
    return url.replace("?", ".json?")


if __name__ == "__main__":
    main()
