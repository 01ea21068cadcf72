"""The places of a move: two data directories of the embedded engine, and a PostgreSQL."""

from __future__ import annotations

import contextlib
import pathlib
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.command import CommandResult, result_of, start, treedb
from tests.postgresql import PostgresqlServers
from treedbd.store.engine import LogEntry, Row
from treedbd.store.postgresql.cluster import PostgresqlCluster
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.engine import PostgresqlEngine
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine

RULES = b'{"rules": {".read": true, "users": {".indexOn": ["age"]}}}'
_PROJECTS = "[projects.demo]\n[projects.shop]\n"


class FileContent(NamedTuple):
    """All that a file of a database holds."""

    rows: list[Row]
    entries: list[LogEntry]
    sequence: int


class Places:
    """Configurations `here` and `there` of the embedded engine, and `cluster` of PostgreSQL."""

    def __init__(self, folder: pathlib.Path, server: PostgresqlServers) -> None:
        self.folder = folder
        self.server = server
        self.data = folder / "here"
        self.back = folder / "there"
        self.here = self.configure("here")
        self.there = self.configure("there")
        self.cluster = self.configure("cluster", f'engine = "{server.dsn}"\n')

    def configure(self, name: str, more: str = "") -> pathlib.Path:
        file = self.folder / f"{name}.toml"
        file.write_text(f'data = "{name}"\n{more}{_PROJECTS}')
        return file

    def fill(self) -> None:
        """Write three databases of two projects, with values of all kinds, and rules of one.

        There are rows of their own, pages of short ones, long leaves, containers that are spread,
        with a priority and without, buckets of long keys, and removed values.
        """
        with open_shelf(self.data / "demo" / "default.shelf", "c") as shelf:
            shelf["users"] = {f"u{at}": {"age": at % 90, "name": "n" * 40} for at in range(3000)}
            shelf["small"] = {"a": 1, "b": [True, None, 2.5], "ordered": {".value": 7}}
            shelf["ordered"] = {"x": {".value": 1, ".priority": 2}, ".priority": "high"}
            shelf["large"] = "é" * 700_000
            shelf["long"] = {"k" * 600 + str(at): "in a bucket" * 20 for at in range(40)}
            shelf["wide"] = {".priority": 5, **{str(at): "w" * 500 for at in range(60)}}
            del shelf["small/a"]
        with open_shelf(self.data / "demo" / "eu.shelf", "c") as shelf:
            shelf["deep"] = {"er": {"and": {"deeper": {str(at): at for at in range(300)}}}}
        with open_shelf(self.data / "shop" / "default.shelf", "c") as shelf:
            shelf["once"] = 1
            del shelf["once"]
        (self.data / "demo" / "rules.json").write_bytes(RULES)

    async def move(self, source: pathlib.Path, target: pathlib.Path, *more: str) -> CommandResult:
        return await treedb("move", "--config", source, "--to", target, "--quiet", *more)

    def query(self, statement: str, *parameters: Any) -> Any:
        return self.server.primary.query(statement, parameters)

    def served(self) -> list[str]:
        """Return the labels of the databases that a daemon over PostgreSQL finds."""
        found = self.query("SELECT name || '--' || project FROM treedb.dbs WHERE project !~ '[.]'")
        return sorted(row[0] for row in found)

    def stored_numbers(self) -> set[int]:
        """Return the numbers of the databases of which PostgreSQL has anything."""
        found = self.query(
            "SELECT db FROM treedb.kv UNION SELECT db FROM treedb.log"
            " UNION SELECT db FROM treedb.changes UNION SELECT db FROM treedb.dbs"
        )
        return {row[0] for row in found}

    @contextlib.contextmanager
    def daemon(self, project: str = "demo", name: str = "default") -> Iterator[PostgresqlEngine]:
        """Play a daemon over PostgreSQL that serves one database."""
        cluster = PostgresqlCluster(PostgresqlSettings(self.server.dsn), retain=1000)
        try:
            database = cluster.projects.create_database(project, name)
            path = self.folder / "copies" / f"{project}-{name}.shelf"
            engine = cluster.open_engine(
                path, database.db, epoch=database.epoch, reserve_bytes=4096
            )
            engine.catch_up()
            with contextlib.closing(engine):
                yield engine
        finally:
            cluster.close()

    def kill_at(
        self,
        function: str,
        source: pathlib.Path,
        target: pathlib.Path,
        number: signal.Signals = signal.SIGKILL,
    ) -> int:
        """Run a move in a process that gets a signal when it calls a function for the first time.

        Return its exit status.
        """
        module, _, name = function.rpartition(".")
        owner, _, attribute = name.rpartition(":")
        program = (
            "import os, signal, sys, importlib\n"
            f"owner = importlib.import_module('{module}')\n"
            f"owner = getattr(owner, '{owner}') if '{owner}' else owner\n"
            f"setattr(owner, '{attribute}', lambda *_, **__: os.kill(os.getpid(), {int(number)}))\n"
            "from treedbd.cli.main import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        words = ["move", "--config", str(source), "--to", str(target)]
        done = result_of(start(words, program=program))
        assert number != signal.SIGKILL or done.status == -number, done
        return done.status


def commit(engine: PostgresqlEngine, key: bytes, value: bytes) -> None:
    """Commit one row with an entry."""
    transaction = engine.begin()
    try:
        transaction.put(key, value)
        transaction.append(b"op of " + key, b"{}")
        transaction.commit()
    except BaseException:
        transaction.rollback()
        raise


def database_of(folder: pathlib.Path, label: str) -> FileContent:
    """Return what the file of a database holds, `demo/eu`."""
    content = content_of(folder)[f"{label}.shelf"]
    assert isinstance(content, FileContent)
    return content


def content_of(folder: pathlib.Path) -> dict[str, FileContent | bytes]:
    """Return what the files of a data directory hold, by their relative paths."""
    found: dict[str, FileContent | bytes] = {}
    for file in folder.glob("*/*.shelf"):
        engine = SqliteEngine.open(file)
        assert engine.warning is None
        found[str(file.relative_to(folder))] = engine.read(
            lambda view: FileContent(
                list(view.scan(b"", b"\xff" * 600)), list(view.entries(0)), view.sequence()
            )
        )
        engine.close()
    for file in folder.glob("*/rules.json"):
        found[str(file.relative_to(folder))] = file.read_bytes()
    return found
