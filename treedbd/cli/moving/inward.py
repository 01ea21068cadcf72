"""Moves the databases of a data directory into PostgreSQL.

While the daemon runs, what differs is copied in passes until little does. Then its lock is taken
(`store.lock`): it refuses writes from then on. One more pass copies the rest and finds all rows
and entries alike in the end, and the copies take their places in one transaction. From that moment
PostgreSQL has the truth, and the daemon of the data directory never gets its lock back.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import attrs

from treedbd.cli.exit import CommandFailed, warn
from treedbd.cli.moving.copying import (
    Compared,
    MoveReport,
    compare_all,
    describe_counts,
    describe_place,
    make_postgresql_settings,
    open_reader,
)
from treedbd.cli.moving.move import MoveOptions
from treedbd.config.settings import Settings
from treedbd.database.data_directory import MOVED_FILE, walk
from treedbd.files import write_atomically
from treedbd.names import DatabaseName, parse_label
from treedbd.store.engine import CannotOpenStore, StoreUnreachable
from treedbd.store.lock import (
    DirectoryInUse,
    DirectoryLock,
    LockTakeover,
    await_writers,
    is_aside,
    put_lock_back,
)
from treedbd.store.postgresql.cluster import PART
from treedbd.store.postgresql.moving import (
    MOVED_IN,
    AppearedMeanwhile,
    Incoming,
    MoveConnection,
    SwitchInDoubt,
    find_other_rules,
    has_entry,
    list_all,
    read_mark,
    remove_left_over,
    stage,
    switch,
)
from treedbd.store.postgresql.schema import prepare_schema, read_schema
from treedbd.store.sqlite.engine import SqliteEngine

_FEW: Final = 10_000
"""If a pass has found no more that differs, the next one is that without writers."""
_MAX_PASSES: Final = 4
_WRITER_PATIENCE_S: Final = 30.0


@attrs.frozen
class _Content:
    """The files of a data directory: those of databases, and the rules of each project."""

    shelves: Mapping[DatabaseName, pathlib.Path]
    rules: Mapping[str, bytes | None]

    @property
    def size(self) -> int:
        return sum(each.stat().st_size for each in self.shelves.values())


def move(options: MoveOptions) -> None:
    """Move everything; raise `CommandFailed`, or one of the errors of the engines."""
    source = options.source
    settings = make_postgresql_settings(options.target.engine)
    if not source.data.is_dir():
        raise CommandFailed(f"There is no data directory {source.data}.")
    prepare_schema(settings)
    report = MoveReport(is_quiet=options.quiet)
    with MoveConnection(settings) as connection:
        inward = _InwardMove(source, connection, report, replace=options.replace)
        if inward.is_complete():
            inward.mark()
            report.print("The data is moved already: stop the old daemon, start the new ones.")
            return
        inward.prepare()
        if _is_in_use(source.data):
            inward.copy_while_served()
        inward.complete()


def undo(options: MoveOptions) -> None:
    """Let the daemon write again, and remove what an attempt has left in PostgreSQL."""
    settings = make_postgresql_settings(options.target.engine)
    data = options.source.data
    report = MoveReport(is_quiet=options.quiet)
    if read_schema(settings) is not None:
        with MoveConnection(settings) as connection:
            inward = _InwardMove(options.source, connection, report, replace=False)
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


class _InwardMove:
    """One move into PostgreSQL."""

    def __init__(
        self, source: Settings, move: MoveConnection, report: MoveReport, *, replace: bool
    ) -> None:
        self._source = source
        self._data = source.data
        self._origin = describe_place(source.data)
        self._move = move
        self._report = report
        self._replace = replace

    def has_moved(self) -> bool:
        """Return whether the last move from here was completed."""
        origin = self._move.run(lambda connection: read_mark(connection, MOVED_IN))
        has_part = any(each.project.endswith(PART) for each in self._move.run(list_all))
        return origin == self._origin and not has_part

    def is_complete(self) -> bool:
        """Return whether the last attempt has done everything, also if it was killed then."""
        if not self.has_moved():
            return False
        if is_aside(self._data):
            return True
        # No daemon ran, so nothing but the mark keeps one from being started: it comes last. What
        # has it is moved again only on demand, since PostgreSQL may have newer data.
        is_wanted = self._replace and (self._data / MOVED_FILE).exists()
        return not is_wanted and not _is_in_use(self._data) and self._is_unchanged()

    def _is_unchanged(self) -> bool:
        """Return whether PostgreSQL has the last write of each file that is here."""
        for name, shelf in self._list().shelves.items():
            with open_reader(shelf) as reader:
                entries = reader.read(lambda view: list(view.entries(max(0, view.sequence() - 1))))
            last = entries[-1] if entries else None
            if last is not None and not self._move.run(partial(has_entry, name=name, entry=last)):
                return False
        return True

    def prepare(self) -> None:
        """Remove what no attempt needs any more; raise `CommandFailed` for what is in the way."""
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
        """Copy while the daemon writes, until little is left."""
        for number in range(1, _MAX_PASSES + 1):
            content = self._list()
            with self._report.step("copying", content.size, f"Pass {number} while writes go on"):
                found = self._pass(content)[0]
            if found.repaired <= _FEW:
                return

    def complete(self) -> None:
        """Refuse writes from now on, copy the rest, verify all, and put it in place."""
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
        self._report.print(
            f"Moved {describe_counts(len(incoming), rows.records, entries.records)}, and verified "
            f"them; writes have been refused for {seconds:.1f} s."
        )
        self._report.print(
            "Now stop the old daemon, and start the new ones. Do not start the old one again."
        )

    def mark(self) -> None:
        """Let no daemon serve the old data by mistake."""
        try:
            write_atomically(self._data / MOVED_FILE, b"")
        except OSError as error:
            warn(f"The file {self._data / MOVED_FILE} cannot be written ({error.strerror}).")

    def _await_writers(self, takeover: LockTakeover) -> None:
        for shelf in self._list().shelves.values():
            if takeover.is_served:
                await_writers(shelf, _WRITER_PATIENCE_S)
            else:
                SqliteEngine.open(shelf, lock=takeover.lock).close()  # after a crash there is a log

    def _pass(self, content: _Content) -> tuple[Compared, Compared, list[Incoming]]:
        """Copy what differs; return what was found in rows and logs, and the copies."""
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
        """Return what is to be moved; raise `CannotOpenStore` if any of it cannot be."""
        shelves: dict[DatabaseName, pathlib.Path] = {}
        rules: dict[str, bytes | None] = {}
        for entry in walk(self._data, self._source.projects):
            if entry.error is not None:
                raise entry.error
            name = DatabaseName(entry.project, entry.database)
            if entry.is_shelf and parse_label(name.label) != name:
                raise CannotOpenStore(
                    entry.file, "has a name that is none", "move it out of the data directory"
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
