"""The catalog: which databases there are, and when their files are created, opened and closed."""

from __future__ import annotations

import gc
import pathlib
import shutil

import attrs
import pytest
from twisted.logger import capturedLogs, formatEvent

from tests.database.catalogs import make_catalog, problems, put, read, refusal, shelves
from tests.store import format_1
from tests.store.conformance import put_all
from treedbd.database.catalog import COMING_S, WrittenDatabases
from treedbd.database.requests import (
    Outcome,
    PermissionDenied,
    ProjectSpec,
    RulesUnreadable,
    Unavailable,
    UnknownDatabase,
)
from treedbd.errors import BUDGET_LINES
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotCreateStore, CannotOpenStore
from treedbd.store.rows import seal
from treedbd.store.sqlite import file as page_sums
from treedbd.store.sqlite.engine import SqliteEngine


def test_reading_a_database_that_was_never_written_creates_nothing(tmp_path: pathlib.Path) -> None:
    catalog, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert read(catalog.find(DatabaseName("p", "d"))) is None
    assert list(tmp_path.iterdir()) == []


def test_no_more_databases_are_created_than_the_limit(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None), max_databases=2)
    databases = {name: catalog.find(DatabaseName("p", name)) for name in "abc"}
    results = {name: put(database, clock, 1) for name, database in databases.items()}
    assert isinstance(results["b"], Outcome)
    refusal = results["c"]
    assert isinstance(refusal, Unavailable)
    assert str(refusal) == "There are 2 databases, and no more can be created."
    assert shelves(tmp_path) == ["p/a.shelf", "p/b.shelf"]
    assert databases["c"].write_problem is None
    assert isinstance(put(databases["c"], clock, 1), Unavailable)
    assert isinstance(put(databases["a"], clock, 2), Outcome)
    catalog.close()


def test_a_project_creates_no_more_databases_than_its_own_limit(tmp_path: pathlib.Path) -> None:
    few, many = ProjectSpec("few", None, databases_max=2), ProjectSpec("many", None)
    catalog, clock = make_catalog(tmp_path, few, many)
    databases = {name: catalog.find(DatabaseName("few", name)) for name in "abc"}
    results = {name: put(database, clock, 1) for name, database in databases.items()}
    refusal = results.pop("c")
    assert isinstance(refusal, Unavailable)
    assert str(refusal) == "The project few has 2 databases, and no more can be created."
    assert all(isinstance(result, Outcome) for result in results.values())
    for name in "abc":
        assert isinstance(put(catalog.find(DatabaseName("many", name)), clock, 1), Outcome)
    assert shelves(tmp_path) == [
        *("few/a.shelf", "few/b.shelf", "many/a.shelf", "many/b.shelf", "many/c.shelf")
    ]
    catalog.close()
    again, _ = make_catalog(tmp_path, attrs.evolve(few, databases_max=1))
    assert read(again.find(DatabaseName("few", "b"))) == {"a": 1}
    again.close()


def test_databases_that_are_being_created_count_until_that_has_failed() -> None:
    now = 0.0
    written = WrittenDatabases(3, lambda: now)
    names = [DatabaseName("p", name) for name in "abcd"]
    for name in names[:2]:
        written.check_may_add(name, 2, None)
    written.check_may_add(names[0], 2, None)  # it may be tried again
    for limit in (2, 100):  # of the project, and of all
        written.check_may_add(DatabaseName("q", "x"), 2, None)
        with pytest.raises(CannotCreateStore, match="no more can be created"):
            written.check_may_add(names[2], limit, None)
    written.add(names[0])
    now = COMING_S + 1
    written.check_may_add(names[2], 2, None)
    with pytest.raises(CannotCreateStore):
        written.check_may_add(names[3], 2, None)


def test_who_creates_too_many_databases_cannot_fill_the_disk_with_lines(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None), max_databases=1)
    put(catalog.find(DatabaseName("p", "a")), clock, 1)
    with capturedLogs() as events:
        for number in range(3 * BUDGET_LINES):
            refused = put(catalog.find(DatabaseName("p", f"n{number}")), clock, 1)
            assert isinstance(refused, Unavailable)
    lines = [formatEvent(event) for event in events]
    assert BUDGET_LINES <= len(lines) <= BUDGET_LINES + 5
    assert lines[0] == "No database was created: There are 1 databases, and no more can be created."
    catalog.close()


def test_a_database_file_that_has_appeared_meanwhile_is_not_overwritten(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None))
    database = catalog.find(DatabaseName("p", "d"))
    appeared = SqliteEngine.create(tmp_path / "p" / "d.shelf")
    put_all(appeared, [(b"", seal(b"", b'{"kept":1}'))])
    appeared.close()
    for _ in range(2):
        refusal = put(database, clock, 1)
        assert isinstance(refusal, Unavailable)
        assert "restart the server" in str(refusal)
        assert str(tmp_path) not in str(refusal)
    catalog.close()
    again, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert read(again.find(DatabaseName("p", "d"))) == {"kept": 1}
    again.close()


def test_a_denied_write_leaves_no_file_and_one_that_succeeds_creates_it(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None), allow=False)
    name = DatabaseName("p", "d")
    assert isinstance(put(catalog.find(name), clock, 1), PermissionDenied)
    assert shelves(tmp_path) == []
    catalog.rules("p").manage_by_file(OPEN)
    assert isinstance(put(catalog.find(name), clock, 1), Outcome)
    assert shelves(tmp_path) == ["p/d.shelf"]


def test_a_name_finds_the_same_database_before_and_after_its_first_write(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, any_project=True)
    before = catalog.find(DatabaseName("p"))
    assert catalog.find(DatabaseName("p")) is before
    put(before, clock, 1)
    assert catalog.find(DatabaseName("p")) is before
    assert read(before) == {"a": 1}


def test_an_unwritten_database_is_dropped_with_the_last_reference_to_it(
    tmp_path: pathlib.Path,
) -> None:
    catalog, _ = make_catalog(tmp_path, any_project=True)
    for number in range(100):
        catalog.find(DatabaseName(f"p{number}"))
    gc.collect()
    assert len(catalog._used) == 0


def test_what_was_written_is_found_by_the_next_catalog(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None))
    put(catalog.find(DatabaseName("p", "d")), clock, 7)
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    assert closed == [None]
    again, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert [name.label for name in again.names(ProjectSpec("p", None))] == ["d--p", "p"]
    assert read(again.find(DatabaseName("p", "d"))) == {"a": 7}
    again.close()


def test_files_of_an_older_format_are_converted_when_the_catalog_opens(
    tmp_path: pathlib.Path,
) -> None:
    for name, body in (("default", {"01": 1, "9": 2, "10": 3}), ("eu", {"x": 1})):
        format_1.create_file(tmp_path / "demo" / f"{name}.shelf", format_1.rows_of(body))
    with capturedLogs() as events:
        catalog, _ = make_catalog(tmp_path, ProjectSpec("demo", None))
    for name, body in (("default", {"01": 1, "9": 2, "10": 3}), ("eu", {"x": 1})):
        database = catalog.find(DatabaseName("demo", name))
        assert list(body) == list(database.read(lambda nodes: list(nodes.keys(()))))
        file = tmp_path / "demo" / f"{name}.shelf"
        assert f"{file} has been converted to format 2." in map(formatEvent, events)
    catalog.close()


def test_a_catalog_does_not_open_where_no_file_can_be_opened(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sums, "load_sums", lambda: False)
    with pytest.raises(CannotOpenStore, match=r"^The SQLite library .* install an apsw that"):
        make_catalog(tmp_path, ProjectSpec("p"))


def test_files_of_a_project_that_is_not_configured_are_not_opened(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, any_project=True)
    put(catalog.find(DatabaseName("old")), clock, 1)
    catalog.close()
    again, _ = make_catalog(tmp_path, ProjectSpec("new"))
    with pytest.raises(UnknownDatabase):
        again.rules("old")
    assert shelves(tmp_path) == ["old/default.shelf"]


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        (DatabaseName("p"), True),
        (DatabaseName("p", "eu"), True),
        (DatabaseName("p", "us"), False),
        (DatabaseName("q"), False),
    ],
)
def test_only_configured_databases_of_configured_projects_are_known(
    tmp_path: pathlib.Path, name: DatabaseName, is_known: bool
) -> None:
    catalog, _ = make_catalog(tmp_path, ProjectSpec("p", frozenset({"default", "eu"})))
    if is_known:
        catalog.find(name)
    else:
        with pytest.raises(UnknownDatabase):
            catalog.find(name)


def test_files_directly_in_the_data_directory_are_not_projects(tmp_path: pathlib.Path) -> None:
    for name in ("treedb.lock", "development.secret", "localhost.key.pem", "localhost.cert.pem"):
        (tmp_path / name).touch()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "rules.json").write_text('{"rules": {}}')
    catalog, _ = make_catalog(tmp_path, ProjectSpec("p"), any_project=True)
    assert catalog.names(ProjectSpec("p")) == [DatabaseName("p", "default")]


def restore_older(folder: pathlib.Path) -> pathlib.Path:
    """Write 1, then 2, and put the file from between the two back; return it."""
    for value in (1, 2):
        catalog, clock = make_catalog(folder, ProjectSpec("p"))
        put(catalog.find(DatabaseName("p")), clock, value)
        catalog.close()
        if value == 1:
            shutil.copy(folder / "p" / "default.shelf", folder / "copy")
    return pathlib.Path(shutil.copy(folder / "copy", folder / "p" / "default.shelf"))


def test_a_database_that_lost_changes_is_refused_unless_that_is_accepted(
    tmp_path: pathlib.Path,
) -> None:
    file = restore_older(tmp_path)
    sentence = refusal(tmp_path, "p")
    assert sentence.startswith(f"{file} ends with change 1, but change 2 had been made durable: ")
    assert "--accept-loss" in sentence
    with capturedLogs() as events:
        catalog, clock = make_catalog(tmp_path, ProjectSpec("p"), accept_loss=True)
        clock.advance(0)
    assert [str(file) in str(event["warning"]) for event in events if "warning" in event] == [True]
    assert read(catalog.find(DatabaseName("p"))) == {"a": 1}
    catalog.close()
    again, _ = make_catalog(tmp_path, ProjectSpec("p"))
    assert read(again.find(DatabaseName("p"))) == {"a": 1}
    again.close()


def test_a_database_whose_file_was_removed_is_not_served_as_an_empty_one(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    put(catalog.find(DatabaseName("p")), clock, 1)
    catalog.close()
    (tmp_path / "p" / "default.shelf").unlink()
    assert "default.shelf-mark is the mark of a database" in refusal(tmp_path, "p")
    (tmp_path / "p" / "default.shelf-mark").unlink()
    again, _ = make_catalog(tmp_path, ProjectSpec("p"))
    assert read(again.find(DatabaseName("p"))) is None


def test_writes_are_refused_and_reported_while_a_file_is_elsewhere(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    database = catalog.find(DatabaseName("p"))
    put(database, clock, 1)
    file = tmp_path / "p" / "default.shelf"
    away = file.rename(tmp_path / "away")
    sentence = "The file of the database was moved, removed or replaced; put it back."
    assert list(map(str, problems(catalog))) == [f"p: {sentence}"]
    for _ in range(2):
        refused = put(database, clock, 2)
        assert isinstance(refused, Unavailable)
        assert sentence in str(refused)
        clock.advance(10)
    assert read(database) == {"a": 1}
    assert [sentence in problem.reason for problem in problems(catalog)] == [True]
    assert not file.exists()
    away.rename(file)
    clock.advance(10)
    assert problems(catalog) == []
    assert isinstance(put(database, clock, 3), Outcome)
    catalog.close()


def test_in_a_data_directory_that_was_moved_no_database_and_no_rules_are_created(
    tmp_path: pathlib.Path,
) -> None:
    folder = tmp_path / "data"
    lock = DirectoryLock(folder)
    catalog, clock = make_catalog(folder, ProjectSpec("p", None), lock=lock)
    database = catalog.find(DatabaseName("p"))
    away = folder.rename(tmp_path / "away")
    refused = put(database, clock, 1)
    assert isinstance(refused, Unavailable)
    assert "The lock file of the data directory was moved" in str(refused)
    failures: list[object] = []
    catalog.rules("p").put(b'{"rules": {}}').addErrback(failures.append)
    assert len(failures) == 1
    assert not folder.exists()
    away.rename(folder)
    assert isinstance(put(database, clock, 1), Outcome)
    assert shelves(folder) == ["p/default.shelf"]
    catalog.close()
    lock.release()


@pytest.mark.parametrize("by_request", [True, False])
def test_rules_that_cannot_be_read_are_read_again_and_deny_nobody_meanwhile(
    tmp_path: pathlib.Path, by_request: bool
) -> None:
    file = tmp_path / "p" / "rules.json"
    file.mkdir(parents=True)  # reading it fails
    catalog, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    with capturedLogs() as logged:
        for _ in range(2):
            with pytest.raises(RulesUnreadable):
                catalog.find(DatabaseName("p"))
    assert len(logged) == 0  # the start has reported it
    (problem,) = problems(catalog)
    assert (problem.project, problem.refuses_writes) == ("p", True)
    file.rmdir()
    file.write_text('{"rules": {".read": true}}')
    if by_request:
        assert read(catalog.find(DatabaseName("p"))) is None
    assert problems(catalog) == []
    catalog.close()
