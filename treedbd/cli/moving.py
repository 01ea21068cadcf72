"""The work of `treedb move`, with the driver of PostgreSQL: into PostgreSQL, or out of it.

Theory of operation. Both directions read shelf files and compare them with PostgreSQL, row by row
and entry by entry (`compare_all`).

*Into PostgreSQL* (`move_inward`): while the daemon runs, passes copy the rows and entries that
differ, until few do. Then the command takes over the lock of the daemon (`store/directory_lock`),
which refuses writes from then on. One more pass copies the rest and verifies that all rows and
entries are equal, and one transaction puts the copies in place. From then on the databases are
those in PostgreSQL, and the daemon of the data directory never receives its lock again.

*Out of PostgreSQL* (`move_outward`): the copies are made as those of a daemon
(`store/postgresql/engine`), in a folder beside the data directory: first while daemons commit,
then, after all epochs have become negative, without writes. All rows and entries are compared with
those in PostgreSQL, and the folder becomes the data directory. If anything fails before that, the
daemons may commit again.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from treedbd.cli.exit import CommandFailed, counted, make_printable, warn, write_out
from treedbd.cli.loading.transfer import ProgressReport
from treedbd.config.settings import Settings
from treedbd.database.data_directory import MOVED_FILE, RULES_FILE, SHELF, list_locks, walk
from treedbd.files import create_directory, sync_directory, write_atomically
from treedbd.names import DatabaseName, parse_label
from treedbd.store.directory_lock import (
    DirectoryInUse,
    DirectoryLock,
    LockTakeover,
    is_aside,
    put_lock_back,
)
from treedbd.store.engine import CannotOpenStore, StoreUnreachable
from treedbd.store.postgresql.cluster import PART, PostgresqlCluster, StoredDatabase, list_all
from treedbd.store.postgresql.commits import POSITION_KEY
from treedbd.store.postgresql.connection import PostgresqlSettings, TimedConnection, rows_of
from treedbd.store.postgresql.moving import (
    LOG,
    MOVED_IN,
    ROWS,
    AppearedMeanwhile,
    Bucket,
    ComparedTable,
    Incoming,
    Key,
    MoveConnection,
    SwitchInDoubt,
    find_different,
    find_other_rules,
    freeze,
    has_entry,
    read_all_rules,
    read_mark,
    remove_left_over,
    repair,
    stage,
    switch,
    take_buckets,
    thaw,
)
from treedbd.store.postgresql.schema import MOVED, prepare_schema, read_schema
from treedbd.store.sqlite.engine import SqliteEngine, remove_files
from treedbd.store.sqlite.file import await_writers, connect_reader
from treedbd.store.sqlite.reader import SqliteReader

PATIENCE_S: Final = 30.0
"""How long one step in PostgreSQL may take; the steps of a daemon are smaller."""

_FEW_ROWS: Final = 10_000
"""After a pass that finds at most so many different rows, writes are refused for the last one."""
_MAX_PASSES: Final = 4
_WRITER_PATIENCE_S: Final = 30.0

WORK: Final = ".moving"
"""The suffix of the folder in which the data directory is made."""
_REPLACED: Final = ".replaced"
_FEW_ENTRIES: Final = 1000
_ALL_ENTRIES: Final = 2**53
_FIRST_ENTRY: Final = "SELECT min(seq) FROM log WHERE db = %s"


def describe_place(directory: pathlib.Path) -> str:
    """Return the name by which PostgreSQL records a data directory."""
    return f"{socket.gethostname()}:{directory.resolve()}"


@contextlib.contextmanager
def open_reader(shelf: pathlib.Path) -> Iterator[SqliteReader]:
    """Open a shelf file for reading, also while a daemon writes it.

    Each `read` shows a moment of its own, so the daemon can restart its log between them.
    Raises `CannotOpenStore`.
    """
    with contextlib.closing(connect_reader(shelf, is_known=False)) as connection:
        yield SqliteReader(connection)


class MoveReport:
    """Prints the results of steps, and their progress."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._progress: ProgressReport | None = None

    @contextlib.contextmanager
    def step(self, title: str, total: int | None, done: str) -> Iterator[None]:
        """Show the progress of a step in a `with` block; at its end `done` is printed."""
        self._progress = progress = ProgressReport(title, total, is_quiet=self._is_quiet)
        try:
            yield
            progress.finish(done, progress.count)
        finally:
            progress.stop()
            self._progress = None

    def advance(self, count: int) -> None:
        """Count bytes."""
        if self._progress is not None:
            self._progress.advance(count)

    def print(self, sentence: str) -> None:
        """Print a sentence."""
        if not self._is_quiet:
            write_out(make_printable(sentence).encode() + b"\n")

    def print_moved(
        self, databases: int, rows: Compared, entries: Compared, seconds: float
    ) -> None:
        """Print how much was moved, while writes were refused for `seconds`."""
        log = f"{entries.records:,} log entr{'y' if entries.records == 1 else 'ies'}"
        self.print(
            f"Moved {counted(databases, 'database')} with {counted(rows.records, 'row')} and {log}"
            f", and verified them; writes have been refused for {seconds:.1f} s."
        )


@attrs.frozen
class Compared:
    """The result of a comparison.

    Attributes:
        records: how many records the file has.
        repaired: how many records were written or removed in PostgreSQL.
        wrong: how many buckets still differ.

    """

    records: int = 0
    repaired: int = 0
    wrong: int = 0

    def __add__(self, other: Compared) -> Compared:
        """Return the sums of both."""
        return Compared(
            self.records + other.records, self.repaired + other.repaired, self.wrong + other.wrong
        )


def compare_table(
    move: MoveConnection,
    table: ComparedTable,
    reader: SqliteReader,
    db: int,
    report: MoveReport,
    *,
    low: Key,
    repairs: bool,
) -> Compared:
    """Compare all records from `low` on; with `repairs` make those in PostgreSQL equal.

    Repaired buckets are compared once more. So if neither side is written meanwhile, and no bucket
    is wrong in the end, both sides are equal.
    """
    found = Compared()
    start: Key | None = low
    while start is not None:
        buckets, start = reader.read(partial(take_buckets, table, low=start))
        found += move.run(partial(_compare, table, db, buckets, repairs))
        report.advance(sum(each.size for each in buckets))
    return found


def compare_all(
    move: MoveConnection, shelf: pathlib.Path, db: int, report: MoveReport
) -> tuple[Compared, Compared, int]:
    """Make the rows and entries in PostgreSQL equal to those of a file.

    Returns the result for rows, for entries, and the number of the last entry.
    """
    with open_reader(shelf) as reader:
        before = reader.read(lambda view: view.sequence())
        rows, entries = (
            compare_table(move, table, reader, db, report, low=table.first, repairs=True)
            for table in (ROWS, LOG)
        )
        sequence = reader.read(lambda view: view.sequence())
    return rows, entries + Compared(wrong=sequence - before), sequence


def _compare(
    table: ComparedTable, db: int, buckets: list[Bucket], repairs: bool, connection: TimedConnection
) -> Compared:
    records = sum(len(each.records) for each in buckets)
    different = find_different(connection, table, db, buckets)
    if not repairs or not different:
        return Compared(records, wrong=len(different))
    connection.execute("BEGIN")
    count = sum(repair(connection, table, db, each) for each in different)
    connection.execute("COMMIT")
    return Compared(records, count, len(find_different(connection, table, db, different)))


@attrs.frozen
class _Content:
    """The files of a data directory: those of databases, and the rules of each project."""

    shelves: Mapping[DatabaseName, pathlib.Path]
    rules: Mapping[str, bytes | None]

    @property
    def size(self) -> int:
        return sum(each.stat().st_size for each in self.shelves.values())


def move_inward(source: Settings, target: Settings, *, replace: bool, is_quiet: bool) -> None:
    """Move all databases; raise `CommandFailed`, or one of the errors of the engines."""
    settings = PostgresqlSettings(target.engine, patience_s=PATIENCE_S)
    if not source.data.is_dir():
        raise CommandFailed(f"There is no data directory {source.data}.")
    prepare_schema(settings)
    report = MoveReport(is_quiet=is_quiet)
    with MoveConnection(settings) as connection:
        inward = _InwardMove(source, connection, report, replace=replace)
        if inward.is_complete():
            inward.mark()
            report.print("The data is moved already: stop the old daemon, start the new ones.")
            return
        inward.prepare()
        if _is_in_use(source.data):
            inward.copy_while_served()
        inward.complete()


def undo_inward(source: Settings, target: Settings, *, is_quiet: bool) -> None:
    """Give the daemon its lock back, and remove the incomplete copy in PostgreSQL."""
    settings = PostgresqlSettings(target.engine, patience_s=PATIENCE_S)
    data = source.data
    report = MoveReport(is_quiet=is_quiet)
    if read_schema(settings) is not None:
        with MoveConnection(settings) as connection:
            inward = _InwardMove(source, connection, report, replace=False)
            if inward.has_moved():
                raise CommandFailed(
                    f"The move from {data} is complete: PostgreSQL has the data. To get it back, "
                    "move it in the other direction."
                )
            remove_left_over(connection)
    was_aside = put_lock_back(data)
    report.print(f"The daemon of {data} may write again." if was_aside else "Nothing was moved.")


def _is_in_use(data: pathlib.Path) -> bool:
    try:
        DirectoryLock(data).release()
    except DirectoryInUse:
        return True
    return False


@attrs.frozen
class _InwardMove:
    """One move into PostgreSQL."""

    _source: Settings
    _move: MoveConnection
    _report: MoveReport
    _replace: bool

    @property
    def _data(self) -> pathlib.Path:
        return self._source.data

    @property
    def _origin(self) -> str:
        return describe_place(self._source.data)

    def has_moved(self) -> bool:
        """Return whether the last move from here was completed."""
        origin = self._move.run(lambda connection: read_mark(connection, MOVED_IN))
        has_part = any(each.project.endswith(PART) for each in self._move.run(list_all))
        return origin == self._origin and not has_part

    def is_complete(self) -> bool:
        """Return whether the last attempt has moved everything, even if it was killed then."""
        if not self.has_moved():
            return False
        if is_aside(self._data):
            return True
        # No daemon ran, so only the mark keeps one from being started; it is written last. A
        # directory that has it is moved again only with --replace, since PostgreSQL may have newer
        # data.
        is_wanted = self._replace and (self._data / MOVED_FILE).exists()
        return not is_wanted and not _is_in_use(self._data) and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        """Return whether PostgreSQL has the last write of each file."""
        for name, shelf in self._list().shelves.items():
            with open_reader(shelf) as reader:
                entries = reader.read(lambda view: list(view.entries(max(0, view.sequence() - 1))))
            last = entries[-1] if entries else None
            if last is not None and not self._move.run(partial(has_entry, name=name, entry=last)):
                return False
        return True

    def prepare(self) -> None:
        """Remove copies of earlier attempts; raise `CommandFailed` for databases in the way."""
        content = self._list()
        if not self._replace:
            self._refuse_conflicts(content)
        remove_left_over(self._move, content.shelves)

    def _refuse_conflicts(self, content: _Content) -> None:
        present = {
            DatabaseName(each.project, each.name)
            for each in self._move.run(list_all)
            if each.is_served
        }
        taken = sorted(each.label for each in present & content.shelves.keys())
        ruled = self._move.run(partial(find_other_rules, rules=content.rules))
        if taken or ruled:
            what = f"the database {taken[0]}" if taken else f"other rules of the project {ruled[0]}"
            raise CommandFailed(
                f"{self._move.settings.subject} has {what} already: move to another, or add "
                "--replace to remove what is there."
            )

    def copy_while_served(self) -> None:
        """Copy while the daemon writes, until few rows differ."""
        for number in range(1, _MAX_PASSES + 1):
            content = self._list()
            with self._report.step("copying", content.size, f"Pass {number} while writes go on"):
                found = self._pass(content)[0]
            if found.repaired <= _FEW_ROWS:
                return

    def complete(self) -> None:
        """Refuse writes from now on, copy the rest, verify everything, and put it in place."""
        takeover = LockTakeover(self._data)
        begin = time.monotonic()
        try:
            if takeover.is_served:
                self._report.print(f"The daemon of {self._data} refuses writes from now on.")
            self._await_writers(takeover)
            content = self._list()
            with self._report.step("copying", content.size, "Copied the rest and verified all"):
                rows, entries, incoming = self._pass(content)
            if rows.wrong or entries.wrong:
                raise CommandFailed("The copy in PostgreSQL differs from the data: try again.")
            switch(self._move, incoming, self._list().rules, self._origin, replace=self._replace)
        except BaseException as error:
            takeover.release(put_back=not isinstance(error, SwitchInDoubt))
            raise _explain(error, self._data) from error
        self.mark()
        takeover.release(put_back=False)
        seconds = time.monotonic() - begin
        try:
            remove_left_over(self._move)
        except StoreUnreachable:
            warn("What was replaced in PostgreSQL is still there; the next move removes it.")
        self._report.print_moved(len(incoming), rows, entries, seconds)
        self._report.print(
            "Now stop the old daemon, and start the new ones. Do not start the old one again."
        )

    def mark(self) -> None:
        """Write the mark that keeps daemons from serving the old data by mistake."""
        try:
            write_atomically(self._data / MOVED_FILE, b"")
        except OSError as error:
            warn(f"The file {self._data / MOVED_FILE} cannot be written ({error.strerror}).")

    def _await_writers(self, takeover: LockTakeover) -> None:
        for shelf in self._list().shelves.values():
            if takeover.is_served:
                await_writers(shelf, _WRITER_PATIENCE_S)
            else:
                SqliteEngine.open(shelf, lock=takeover.lock).close()  # checkpoints its log

    def _pass(self, content: _Content) -> tuple[Compared, Compared, list[Incoming]]:
        """Copy differences; return the results for rows and for entries, and the copies."""
        rows, entries = Compared(), Compared()
        copies = []
        for name, shelf in content.shelves.items():
            copy = self._move.run(partial(stage, name=name))
            found = compare_all(self._move, shelf, copy.db, self._report)
            rows += found[0]
            entries += found[1]
            copies.append(attrs.evolve(copy, sequence=found[2]))
        return rows, entries, copies

    def _list(self) -> _Content:
        """Return the files to move; raise `CannotOpenStore` if one cannot be moved."""
        shelves: dict[DatabaseName, pathlib.Path] = {}
        rules: dict[str, bytes | None] = {}
        for entry in walk(self._data, self._source.projects):
            if entry.error is not None:
                raise entry.error
            name = DatabaseName(entry.project, entry.database)
            if entry.is_shelf and parse_label(name.label) != name:
                raise CannotOpenStore(
                    entry.file, "has an invalid name", "move it out of the data directory"
                )
            if entry.is_shelf:
                shelves[name] = entry.file
                rules.setdefault(entry.project, None)
            else:
                rules[entry.project] = entry.file.read_bytes()
        return _Content(shelves, rules)


def _explain(error: BaseException, data: pathlib.Path) -> BaseException:
    if isinstance(error, AppearedMeanwhile):
        return CommandFailed(
            "A database or rules were created in PostgreSQL meanwhile: stop the new daemons, "
            "and try again with --replace."
        )
    if isinstance(error, SwitchInDoubt):
        return CommandFailed(
            "PostgreSQL cannot be reached to find out whether the data is moved: run the command "
            f"again when it can. Until then the daemon of {data} refuses writes."
        )
    return error


def move_outward(source: Settings, target: Settings, *, replace: bool, is_quiet: bool) -> None:
    """Move all databases; raise `CommandFailed`, or one of the errors of the engines."""
    settings = _find_tables(source)
    data = target.data.absolute()
    report = MoveReport(is_quiet=is_quiet)
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
        _lock_target(data, closing, replace=replace)
        work = data.with_name(data.name + WORK)
        work_lock = DirectoryLock(work)  # it becomes that of the data directory
        closing.callback(work_lock.release)
        cluster = PostgresqlCluster(settings, retain=_ALL_ENTRIES)
        closing.callback(cluster.close)
        _OutwardMove(
            move=connection, cluster=cluster, work=work, lock=work_lock, report=report
        ).run(data)


def _lock_target(data: pathlib.Path, closing: contextlib.ExitStack, *, replace: bool) -> None:
    """Lock a data directory that a move may fill, until `closing`; raise `CommandFailed`."""
    if data.is_mount():
        raise CommandFailed(f"{data} is a mount point: choose a directory in it.")
    lock = DirectoryLock(data)
    closing.callback(lock.release)
    if not replace and not _is_free(data):
        raise CommandFailed(
            f"{data} is not empty: choose another data directory, or add --replace to give "
            "that one another name."
        )


def undo_outward(source: Settings, target: Settings, *, is_quiet: bool) -> None:
    """Make PostgreSQL accept commits again, and remove the incomplete copy."""
    settings = _find_tables(source)
    data = target.data.absolute()
    report = MoveReport(is_quiet=is_quiet)
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


def _find_tables(source: Settings) -> PostgresqlSettings:
    settings = PostgresqlSettings(source.engine, patience_s=PATIENCE_S)
    if read_schema(settings) is None:
        raise CommandFailed(f"{settings.subject} has no tables of treedb: nothing can be moved.")
    return settings


def _has_databases(data: pathlib.Path) -> bool:
    return any(data.glob(f"*/*{SHELF}"))


def _is_free(data: pathlib.Path) -> bool:
    return not set(data.iterdir()) - set(list_locks(data))


@attrs.frozen
class _OutwardMove:
    """One move out of PostgreSQL, into the folder `work`, whose lock is `lock`."""

    _move: MoveConnection
    _cluster: PostgresqlCluster
    _work: pathlib.Path
    _lock: DirectoryLock
    _report: MoveReport

    def run(self, data: pathlib.Path) -> None:
        """Move all databases to `data`."""
        for number in range(1, _MAX_PASSES + 1):
            with self._report.step("copying", None, f"Pass {number} while writes go on"):
                count = sum(map(self._bring, self._list()))
            if count <= _FEW_ENTRIES:
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
        self._report.print_moved(len(databases), rows, entries, time.monotonic() - begin)
        self._report.print(f"Now stop the old daemons, and start the new one, with {data}.")

    def _list(self) -> list[StoredDatabase]:
        found = [each for each in self._move.run(list_all) if each.is_served]
        for each in found:
            name = DatabaseName(each.project, each.name)
            if parse_label(name.label) != name:
                raise CommandFailed(
                    f"PostgreSQL has a database with an invalid name: {name.label}."
                )
        return found

    def _path(self, database: StoredDatabase) -> pathlib.Path:
        return self._work / database.project / f"{database.name}{SHELF}"

    def _bring(self, database: StoredDatabase) -> int:
        """Make a copy current; return how many commits it lacked."""
        path = self._path(database)
        engine = self._cluster.open_engine(path, database.db, epoch=database.epoch, lock=self._lock)
        with contextlib.closing(engine):
            before = engine.position.rev
            engine.catch_up()
            self._report.advance(engine.size())
            return engine.position.rev - before

    def _complete(self, databases: Sequence[StoredDatabase]) -> tuple[Compared, Compared]:
        """Make the copies and the rules equal to the frozen state, and verify them."""
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
                remove_files(path)  # of an earlier attempt, removed since
        self._write_rules()
        return rows, entries

    def _write_rules(self) -> None:
        for project, text in self._move.run(read_all_rules).items():
            if parse_label(project) != DatabaseName(project):
                raise CommandFailed(f"PostgreSQL has a project with an invalid name: {project}.")
            file = self._work / project / RULES_FILE
            file.unlink(missing_ok=True)
            if text is not None:
                create_directory(file.parent)
                write_atomically(file, text)

    def _verify(self, database: StoredDatabase) -> tuple[Compared, Compared]:
        """Compare the file of a copy with PostgreSQL."""
        db = database.db
        with open_reader(self._path(database)) as reader:
            rows = compare_table(
                self._move, ROWS, reader, db, self._report, low=ROWS.first, repairs=False
            )
            # Daemons may drop old entries at any time, which the copy still has.
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
            for file in list_locks(data):
                file.unlink()
        else:
            data.rename(_unused(data))
        self._work.rename(data)  # an empty directory is replaced
        with contextlib.suppress(OSError):  # it is in place, so the move must not be undone
            sync_directory(data.parent)

    def _thaw(self) -> None:
        """Make PostgreSQL accept commits again, over another connection if this one is lost."""
        settings = self._move.settings
        try:
            try:
                self._move.run_transaction(thaw)
            except StoreUnreachable:
                self._move.close()
                with MoveConnection(settings) as another:
                    another.run_transaction(thaw)
        except Exception:  # the error that is being handled is reported
            warn(
                "PostgreSQL cannot be reached, and refuses writes until the command is run again, "
                "or with --undo."
            )


def _finish(path: pathlib.Path, lock: DirectoryLock) -> None:
    """Make a copy a database of its own: durable, and without its position."""
    with contextlib.closing(SqliteEngine.open(path, lock=lock)) as engine:
        transaction = engine.begin()
        transaction.delete(POSITION_KEY)
        transaction.commit()


def _first_entry(connection: TimedConnection, db: int) -> int:
    ((first,),) = rows_of(connection, _FIRST_ENTRY, (db,))
    return 0 if first is None else int(first)


def _unused(data: pathlib.Path) -> pathlib.Path:
    """Return an unused name for a data directory that is replaced."""
    number = 1
    while (path := data.with_name(f"{data.name}{_REPLACED}-{number}")).exists():
        number += 1
    return path
