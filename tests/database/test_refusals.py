"""What cannot be opened is refused, logged and reported, and everything else is served."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Callable, Iterator

import pytest
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from zope.interface import implementer

from tests.database.catalogs import (
    PROJECT,
    acquire,
    close,
    find,
    make_catalog,
    problems,
    put,
    read,
    use,
)
from tests.rights import someone_else
from treedbd.database.catalog import Catalog
from treedbd.database.open_databases import RETRY_S
from treedbd.database.requests import DatabaseRefused, ProjectSpec, UnknownDatabase
from treedbd.names import DatabaseName
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What is logged during the test."""
    lines: list[str] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


def create_two(folder: pathlib.Path) -> pathlib.Path:
    """Create the databases `bad` and `good`; return the file of the first."""
    catalog, clock = make_catalog(folder, PROJECT)
    put(find(catalog, "bad"), clock, 1)
    put(find(catalog, "good"), clock, 2)
    close(catalog)
    return folder / "p" / "bad.shelf"


def make_newer(file: pathlib.Path) -> None:
    connection = connect(file)
    connection.pragma("user_version", 99)
    connection.close()


def make_foreign(file: pathlib.Path) -> None:
    file.write_bytes(b"x" * 8192)


def make_empty(file: pathlib.Path) -> None:
    file.write_bytes(b"")


def make_directory(file: pathlib.Path) -> None:
    file.unlink()
    file.mkdir()


def remove_but_for_its_log(file: pathlib.Path) -> None:
    file.unlink()
    file.with_name(f"{file.name}-mark").unlink()
    file.with_name(f"{file.name}-wal").write_bytes(b"x")


def make_broken_link(file: pathlib.Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


AT_THE_START = [
    (make_newer, "has format 99"),
    (make_foreign, "is not a database of treedb"),
    (make_empty, "is empty"),
    (make_directory, "is not a file"),
    (remove_but_for_its_log, "bad.shelf, is missing"),
    (make_broken_link, "No such file"),
]


@pytest.mark.parametrize(("spoil", "problem"), AT_THE_START)
def test_one_refused_database_is_reported_at_the_start_and_the_others_are_served(
    tmp_path: pathlib.Path, log: list[str], spoil: Callable[[pathlib.Path], None], problem: str
) -> None:
    file = create_two(tmp_path)
    spoil(file)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    (line,) = [line for line in log if problem in line]
    assert str(file) in line
    assert line.endswith("The database bad--p is not served until then.")
    assert isinstance(use(catalog, find(catalog, "bad")), DatabaseRefused)
    with pytest.raises(DatabaseRefused):
        read(find(catalog, "bad"))
    refusal = put(find(catalog, "bad"), clock, 3)
    assert isinstance(refusal, DatabaseRefused)
    assert str(tmp_path) not in str(refusal)
    assert use(catalog, find(catalog, "good")) is None
    assert read(find(catalog, "good")) == {"a": 2}
    (found,) = problems(catalog)
    assert (found.project, found.database, found.refuses_writes) == ("p", "bad", True)
    assert problem in found.reason
    assert str(tmp_path) not in found.reason
    assert catalog.names(PROJECT) == [
        DatabaseName("p", name) for name in ("bad", "default", "good")
    ]
    close(catalog)


def test_what_an_opening_finds_out_is_reported_without_a_request(
    tmp_path: pathlib.Path, log: list[str]
) -> None:
    file = create_two(tmp_path)
    with connect(file) as connection:
        connection.execute("DROP TABLE log")
    connection.close()
    catalog, clock = make_catalog(tmp_path, PROJECT)
    assert problems(catalog) == []
    clock.advance(0)
    (found,) = problems(catalog)
    assert found.database == "bad"
    assert "is damaged (its tables are not those of a database of treedb)" in found.reason
    assert len([line for line in log if "its tables" in line]) == 1
    assert isinstance(use(catalog, find(catalog, "bad")), DatabaseRefused)
    assert len([line for line in log if "its tables" in line]) == 1
    close(catalog)


def test_a_refused_database_counts_and_is_not_created_again(tmp_path: pathlib.Path) -> None:
    file = create_two(tmp_path)
    file.unlink()
    file.symlink_to("nowhere")
    catalog, clock = make_catalog(tmp_path, PROJECT, max_databases=2)
    assert isinstance(put(find(catalog, "bad"), clock, 3), DatabaseRefused)
    refusal = put(find(catalog, "third"), clock, 3)
    assert str(refusal) == "There are 2 databases, and no more can be created."
    assert not file.exists()
    close(catalog)


def test_a_file_that_vanished_while_it_was_closed_is_refused_and_not_created_again(
    tmp_path: pathlib.Path,
) -> None:
    create_two(tmp_path)
    catalog, clock = make_catalog(tmp_path, PROJECT, max_open=1)
    bad, good = find(catalog, "bad"), find(catalog, "good")
    assert use(catalog, bad) is None
    assert use(catalog, good) is None
    (tmp_path / "p" / "bad.shelf").unlink()
    assert isinstance(put(bad, clock, 1), DatabaseRefused)
    assert isinstance(use(catalog, bad), DatabaseRefused)
    assert not (tmp_path / "p" / "bad.shelf").exists()
    close(catalog)


def test_a_refused_database_is_served_again_when_it_is_mended_and_tried_again(
    tmp_path: pathlib.Path, log: list[str]
) -> None:
    file = create_two(tmp_path)
    content = file.read_bytes()
    make_foreign(file)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    bad = find(catalog, "bad")
    catalog.retry_refused()
    assert len(problems(catalog)) == 1
    file.write_bytes(content)
    assert isinstance(use(catalog, bad), DatabaseRefused)  # it might be half way back
    catalog.retry_refused()
    assert problems(catalog) == []
    assert use(catalog, bad) is None
    assert read(bad) == {"a": 1}
    assert "The database bad--p is served again." in log
    assert bad.requests == 0
    clock.advance(0)
    close(catalog)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_locked_database_is_refused_until_the_lock_ends(
    tmp_path: pathlib.Path, log: list[str], is_used: bool
) -> None:
    file = create_two(tmp_path)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    bad = find(catalog, "bad")
    other = connect(file)
    other.pragma("locking_mode", "exclusive")
    other.execute("BEGIN EXCLUSIVE")
    for _ in range(2):
        assert isinstance(use(catalog, bad), DatabaseRefused)
        assert ["is locked" in each.reason for each in problems(catalog)] == [True]
    assert len([line for line in log if "is locked by another program" in line]) == 1
    other.execute("ROLLBACK")
    other.close()
    if is_used:
        assert use(catalog, bad) is None
    else:
        clock.advance(RETRY_S)
    assert problems(catalog) == []
    assert read(bad) == {"a": 1}
    close(catalog)


def test_a_database_whose_disk_fails_is_tried_again_and_logged_once(
    tmp_path: pathlib.Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_two(tmp_path)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    attempts: list[pathlib.Path] = []

    def fail(path: pathlib.Path, **_: object) -> None:
        attempts.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(SqliteEngine, "open", fail)
        clock.advance(0)
        assert len(attempts) == 2
        clock.advance(RETRY_S)
        assert len(attempts) == 4
        assert isinstance(use(catalog, find(catalog, "bad")), DatabaseRefused)
        assert len(attempts) == 5
    assert len(problems(catalog)) == 2
    assert len([line for line in log if "Input/output error" in line]) == 2
    clock.advance(RETRY_S)
    assert problems(catalog) == []
    close(catalog)


def check_project_is_refused(folder: pathlib.Path, log: list[str], problem: str) -> Catalog:
    """Return a catalog in which the project `p` is refused, and `other` served."""
    catalog, clock = make_catalog(folder, PROJECT, ProjectSpec("other", None))
    (line,) = [line for line in log if problem in line and "No database" in line]
    assert str(folder / "p") in line
    with pytest.raises(DatabaseRefused):
        find(catalog, "default")
    (found,) = [each for each in problems(catalog) if each.refuses_writes]
    assert (found.project, found.database) == ("p", None)
    assert problem in found.reason
    assert str(folder) not in found.reason
    other = catalog.find(DatabaseName("other"))
    assert not isinstance(put(other, clock, 1), Exception)
    return catalog


def test_a_project_directory_that_cannot_be_read_is_refused(
    tmp_path: pathlib.Path, log: list[str]
) -> None:
    (tmp_path / "p").mkdir(mode=0)
    with someone_else(tmp_path):
        catalog = check_project_is_refused(
            tmp_path, log, "cannot be read (Permission denied): let the user"
        )
        close(catalog)


@pytest.mark.parametrize("content", ["file", "link"])
def test_a_project_that_is_not_a_directory_is_refused(
    tmp_path: pathlib.Path, log: list[str], content: str
) -> None:
    file = tmp_path / "p"
    if content == "file":
        file.touch()
        problem = "is not a directory"
    else:
        file.symlink_to("nowhere")
        problem = "cannot be read (No such file"
    close(check_project_is_refused(tmp_path, log, problem))


@pytest.mark.parametrize("project", [ProjectSpec("other"), ProjectSpec("p")])
def test_what_is_not_configured_is_not_opened_and_refuses_nothing(
    tmp_path: pathlib.Path, log: list[str], project: ProjectSpec
) -> None:
    file = create_two(tmp_path)
    good = file.with_name("good.shelf")
    make_foreign(file)
    catalog, clock = make_catalog(tmp_path, project)
    clock.advance(0)
    catalog.retry_refused()
    assert problems(catalog) == []
    belonging = "belongs to no project and database of the configuration"
    assert log == [f"{each} {belonging}; it is not served." for each in (file, good)]
    with pytest.raises(UnknownDatabase):
        find(catalog, "bad")
    close(catalog)


def test_the_start_opens_no_database(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_two(tmp_path)
    opened: list[pathlib.Path] = []

    def open_and_count(path: pathlib.Path, **options: object) -> SqliteEngine:
        opened.append(path)
        raise OSError(path)

    monkeypatch.setattr(SqliteEngine, "open", open_and_count)
    catalog, _ = make_catalog(tmp_path, PROJECT)
    assert opened == []
    opening = acquire(catalog, find(catalog, "bad"))
    assert opening is not None
    opening.addErrback(lambda failure: failure.trap(DatabaseRefused))
    assert opened == [tmp_path / "p" / "bad.shelf"]
