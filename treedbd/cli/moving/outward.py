"""Moves the databases of a PostgreSQL into a data directory of the embedded engine.

The copies are made as a daemon makes its own (`store.postgresql.engine`), in a folder beside the
data directory: first while daemons commit, then, after all epochs have become negative, what was
committed since. All rows and entries are compared with those in PostgreSQL, and the folder becomes
the data directory. If anything fails before that, the daemons may commit again.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Final

from treedbd.cli.exit import CommandFailed, warn
from treedbd.cli.moving.copying import (
    Compared,
    MoveReport,
    compare_table,
    describe_counts,
    describe_place,
    make_postgresql_settings,
    open_reader,
)
from treedbd.cli.moving.move import MoveOptions
from treedbd.database.data_directory import RULES_FILE, SHELF
from treedbd.files import create_directory, sync_directory, write_atomically
from treedbd.names import DatabaseName, parse_label
from treedbd.store.engine import StoreUnreachable
from treedbd.store.lock import LOCK_FILE, DirectoryLock
from treedbd.store.postgresql.cluster import PostgresqlCluster, StoredDatabase
from treedbd.store.postgresql.commits import POSITION_KEY
from treedbd.store.postgresql.connection import PostgresqlSettings, TimedConnection, rows_of
from treedbd.store.postgresql.fetching import LOG, ROWS
from treedbd.store.postgresql.moving import (
    MoveConnection,
    freeze,
    list_all,
    read_all_rules,
    read_mark,
    thaw,
)
from treedbd.store.postgresql.schema import MOVED, read_schema
from treedbd.store.sqlite.engine import SqliteEngine, remove_files

WORK: Final = ".moving"
"""What the name of the folder has in which the data directory is made."""
_REPLACED: Final = ".replaced"
_FEW: Final = 1000
_MAX_PASSES: Final = 4
_ALL_ENTRIES: Final = 2**53
_FIRST_ENTRY: Final = "SELECT min(seq) FROM log WHERE db = %s"


def move(options: MoveOptions) -> None:
    """Move everything; raise `CommandFailed`, or one of the errors of the engines."""
    settings = _find_tables(options)
    data = options.target.data.absolute()
    report = MoveReport(is_quiet=options.quiet)
    with contextlib.ExitStack() as closing:
        connection = closing.enter_context(MoveConnection(settings))
        gone = connection.run(lambda each: read_mark(each, MOVED))
        if gone == describe_place(data) and _has_databases(data):
            report.print("The data is moved already: stop the old daemons, start the new one.")
            return
        if gone is not None and gone != describe_place(data):
            raise CommandFailed(
                f"The data was moved away to {gone}: move it from there, or, if that is lost, let "
                "PostgreSQL have it again by --undo."
            )
        if data.is_mount():
            raise CommandFailed(f"{data} is a mount point: choose a directory in it.")
        lock = DirectoryLock(data)
        closing.callback(lock.release)
        if not options.replace and not _is_free(data):
            raise CommandFailed(
                f"{data} is not empty: choose another data directory, or add --replace to give "
                "that one another name."
            )
        work = data.with_name(data.name + WORK)
        work_lock = DirectoryLock(work)  # it becomes that of the data directory
        closing.callback(work_lock.release)
        cluster = PostgresqlCluster(settings, retain=_ALL_ENTRIES)
        closing.callback(cluster.close)
        _OutwardMove(connection, cluster, work, work_lock, report).run(data)


def undo(options: MoveOptions) -> None:
    """Let PostgreSQL accept commits again, and remove what an attempt has left."""
    settings = _find_tables(options)
    data = options.target.data.absolute()
    report = MoveReport(is_quiet=options.quiet)
    with MoveConnection(settings) as connection:
        gone = connection.run(lambda each: read_mark(each, MOVED))
        if gone == describe_place(data) and _has_databases(data):
            raise CommandFailed(
                f"The move is complete: {data} has the data. To get it back, move it in the other "
                "direction."
            )
        connection.run_transaction(thaw)
        shutil.rmtree(data.with_name(data.name + WORK), ignore_errors=True)
    report.print("PostgreSQL accepts commits again." if gone else "Nothing was moved.")


def _find_tables(options: MoveOptions) -> PostgresqlSettings:
    settings = make_postgresql_settings(options.source.engine)
    if read_schema(settings) is None:
        raise CommandFailed(f"{settings.subject} has no tables of treedb: nothing can be moved.")
    return settings


def _has_databases(data: pathlib.Path) -> bool:
    return any(data.glob(f"*/*{SHELF}"))


def _is_free(data: pathlib.Path) -> bool:
    return not {each.name for each in data.iterdir()} - {LOCK_FILE}


class _OutwardMove:
    """One move out of PostgreSQL, into the folder `work`."""

    def __init__(
        self,
        move: MoveConnection,
        cluster: PostgresqlCluster,
        work: pathlib.Path,
        lock: DirectoryLock,
        report: MoveReport,
    ) -> None:
        self._move = move
        self._cluster = cluster
        self._work = work
        self._lock = lock
        self._report = report

    def run(self, data: pathlib.Path) -> None:
        """Move everything to `data`."""
        for number in range(1, _MAX_PASSES + 1):
            with self._report.step("copying", None, f"Pass {number} while writes go on"):
                count = sum(map(self._bring, self._list()))
            if count <= _FEW:
                break
        begin = time.monotonic()
        place = describe_place(data)
        try:
            self._move.run_transaction(lambda connection: freeze(connection, place))
            self._report.print("The daemons refuse writes from now on.")
            databases = self._list()
            rows, entries = self._complete(databases)
            self._put_in_place(data)
        except BaseException:
            self._thaw()
            raise
        seconds = time.monotonic() - begin
        self._report.print(
            f"Moved {describe_counts(len(databases), rows.records, entries.records)}, and verified "
            f"them; writes have been refused for {seconds:.1f} s."
        )
        self._report.print(f"Now stop the old daemons, and start the new one, with {data}.")

    def _list(self) -> list[StoredDatabase]:
        found = [each for each in self._move.run(list_all) if each.is_served]
        for each in found:
            name = DatabaseName(each.project, each.name)
            if parse_label(name.label) != name:
                raise CommandFailed(f"PostgreSQL has a database whose name is none: {name.label}.")
        return found

    def _path(self, database: StoredDatabase) -> pathlib.Path:
        return self._work / database.project / f"{database.name}{SHELF}"

    def _bring(self, database: StoredDatabase) -> int:
        """Bring a copy up to the present; return how many commits it lacked."""
        path = self._path(database)
        engine = self._cluster.open_engine(path, database.db, epoch=database.epoch, lock=self._lock)
        try:
            before = engine.position.rev
            engine.catch_up()
            self._report.advance(engine.size())
            return engine.position.rev - before
        finally:
            engine.close()

    def _complete(self, databases: Sequence[StoredDatabase]) -> tuple[Compared, Compared]:
        """Bring the copies and the rules to what is frozen, and verify them."""
        with self._report.step("copying", None, "Copied without writes"):
            for each in databases:
                self._bring(each)
        rows, entries = Compared(), Compared()
        with self._report.step("verifying", None, "Verified"):
            for each in databases:
                found = self._verify(each)
                if found[0].wrong or found[1].wrong:
                    remove_files(self._path(each))  # so that the next attempt copies all of it
                    raise CommandFailed("The copy differs from what PostgreSQL has: try again.")
                rows, entries = rows + found[0], entries + found[1]
        wanted = {self._path(each) for each in databases}
        for path in self._work.glob(f"*/*{SHELF}"):
            if path in wanted:
                _finish(path, self._lock)
            else:
                remove_files(path)  # of an earlier attempt, and removed since
        self._write_rules()
        return rows, entries

    def _write_rules(self) -> None:
        for project, text in self._move.run(read_all_rules).items():
            if parse_label(project) != DatabaseName(project):
                raise CommandFailed(f"PostgreSQL has a project whose name is none: {project}.")
            file = self._work / project / RULES_FILE
            file.unlink(missing_ok=True)
            if text is not None:
                create_directory(file.parent)
                write_atomically(file, text)

    def _verify(self, database: StoredDatabase) -> tuple[Compared, Compared]:
        """Compare the file of a copy with what is in PostgreSQL."""
        db = database.db
        with open_reader(self._path(database)) as reader:
            rows = compare_table(
                self._move, ROWS, reader, db, self._report, low=ROWS.first, repairs=False
            )
            # Daemons drop old entries at any time, and then the copy has more of them.
            first = self._move.run(lambda connection: _first_entry(connection, db))
            sequence = reader.read(lambda view: view.sequence())
            own = reader.read(lambda view: next(iter(view.entries(0)), None))
            low = max(first, sequence + 1 if own is None else own.sequence)
            entries = compare_table(
                self._move, LOG, reader, db, self._report, low=low, repairs=False
            )
        if sequence != database.seq:
            entries += Compared(wrong=1)
        return rows, entries

    def _put_in_place(self, data: pathlib.Path) -> None:
        """Make the folder the data directory, with its lock."""
        for folder in self._work.iterdir():
            if folder.is_dir():
                sync_directory(folder)
        sync_directory(self._work)
        if _is_free(data):
            (data / LOCK_FILE).unlink()
        else:
            data.rename(_unused(data))
        self._work.rename(data)  # an empty directory is replaced
        with contextlib.suppress(OSError):  # it is in place, and may not be undone any more
            sync_directory(data.parent)

    def _thaw(self) -> None:
        """Let daemons commit again, if need be over another connection."""
        settings = self._move.settings
        try:
            try:
                self._move.run_transaction(thaw)
            except StoreUnreachable:
                self._move.close()
                with MoveConnection(settings) as another:
                    another.run_transaction(thaw)
        except Exception:  # the error that led here is the one to be reported
            warn(
                "PostgreSQL cannot be reached, and refuses writes until the command is run again, "
                "or with --undo."
            )


def _finish(path: pathlib.Path, lock: DirectoryLock) -> None:
    """Make a copy a database of its own: durable, and without its position."""
    engine = SqliteEngine.open(path, lock=lock)
    try:
        transaction = engine.begin()
        transaction.delete(POSITION_KEY)
        transaction.commit()
    finally:
        engine.close()


def _first_entry(connection: TimedConnection, db: int) -> int:
    ((first,),) = rows_of(connection, _FIRST_ENTRY, (db,))
    return 0 if first is None else int(first)


def _unused(data: pathlib.Path) -> pathlib.Path:
    """Return a free name for a data directory that is replaced."""
    number = 1
    while (path := data.with_name(f"{data.name}{_REPLACED}-{number}")).exists():
        number += 1
    return path
