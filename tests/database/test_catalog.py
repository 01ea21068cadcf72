"""The catalogue: which databases there are, when their files come into being, and their end."""

from __future__ import annotations

import gc
import pathlib

import pytest
from twisted.internet.task import Clock

from tests.database.world import run_at_once
from tests.injection import spoil_row
from tests.rights import someone_else
from tests.store.conformance import put_all
from treedbd.database.catalog import Catalog, DatabaseName, ProjectSpec, UnknownDatabase
from treedbd.database.database import Database
from treedbd.database.platform import Platform
from treedbd.database.question import (
    Caller,
    Outcome,
    PermissionDenied,
    Unavailable,
    Write,
)
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.mapping import Refused
from treedbd.store.sqlite import SqliteMapping
from treedbd.tree.edit import make_put
from treedbd.tree.path import Place
from treedbd.tree.value import Json, plain

NOBODY = Caller(None)


def make_catalog(
    folder: pathlib.Path,
    *projects: ProjectSpec,
    any_project: bool = False,
    is_open: bool = True,
    most_databases: int = 100,
) -> tuple[Catalog, Clock]:
    clock = Clock()
    catalog = Catalog(
        folder,
        "sqlite",
        {project.name: project for project in projects},
        any_project=any_project,
        first_rules=OPEN if is_open else DENY,
        most_databases=most_databases,
        platform=Platform(clock, bytes, run_at_once),
        retain_events=10,
    )
    catalog.open()
    return catalog, clock


def put(database: Database, clock: Clock, value: Json) -> Outcome | Exception:
    found: list[Outcome | Exception] = []
    waiting = database.write(Write(make_put(Place(("a",)), value), 0, NOBODY))
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    clock.advance(0)
    (result,) = found
    return result


def read(database: Database) -> Json:
    return database.read(lambda nodes: plain(nodes.get(())))


def shelves(folder: pathlib.Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.glob("*/*.shelf"))


def test_reading_a_database_that_nobody_wrote_creates_nothing(tmp_path: pathlib.Path) -> None:
    catalog, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert read(catalog.database(DatabaseName("p", "d"))) is None
    assert list(tmp_path.iterdir()) == []


def test_no_more_databases_come_into_being_than_are_allowed(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None), most_databases=2)
    databases = {name: catalog.database(DatabaseName("p", name)) for name in "abc"}
    results = {name: put(database, clock, 1) for name, database in databases.items()}
    assert isinstance(results["b"], Outcome)
    refusal = results["c"]
    assert isinstance(refusal, Unavailable)
    assert str(refusal) == "There are 2 databases, and no more may be made."
    assert shelves(tmp_path) == ["p/a.shelf", "p/b.shelf"]
    assert databases["c"].trouble is None
    assert isinstance(put(databases["c"], clock, 1), Unavailable)
    assert isinstance(put(databases["a"], clock, 2), Outcome)
    catalog.close()


def test_a_database_that_has_appeared_meanwhile_is_left_alone(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None))
    database = catalog.database(DatabaseName("p", "d"))
    there = SqliteMapping.create(tmp_path / "p" / "d.shelf")
    put_all(there, [(b"", b'{"kept":1}')])
    there.close()
    for _ in range(2):
        refusal = put(database, clock, 1)
        assert isinstance(refusal, Unavailable)
        assert "start the server anew" in str(refusal)
        assert str(tmp_path) not in str(refusal)
    catalog.close()
    again, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert read(again.database(DatabaseName("p", "d"))) == {"kept": 1}
    again.close()


def test_a_denied_write_leaves_no_file_and_one_that_succeeds_makes_it(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None), is_open=False)
    name = DatabaseName("p", "d")
    assert isinstance(put(catalog.database(name), clock, 1), PermissionDenied)
    assert shelves(tmp_path) == []
    catalog.rulebook("p").govern(OPEN)
    assert isinstance(put(catalog.database(name), clock, 1), Outcome)
    assert shelves(tmp_path) == ["p/d.shelf"]


def test_everyone_is_given_the_same_database_before_and_after_its_first_write(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, any_project=True)
    before = catalog.database(DatabaseName("p"))
    assert catalog.database(DatabaseName("p")) is before
    put(before, clock, 1)
    assert catalog.database(DatabaseName("p")) is before
    assert read(before) == {"a": 1}


def test_an_unwritten_database_is_forgotten_with_the_last_who_holds_it(
    tmp_path: pathlib.Path,
) -> None:
    catalog, _ = make_catalog(tmp_path, any_project=True)
    for number in range(100):
        catalog.database(DatabaseName(f"p{number}"))
    gc.collect()
    assert len(catalog._unwritten) == 0


def test_what_was_written_is_there_for_the_next_catalogue(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None))
    put(catalog.database(DatabaseName("p", "d")), clock, 7)
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    assert closed == [None]
    again, _ = make_catalog(tmp_path, ProjectSpec("p", None))
    assert [name.label for name in again.names("p")] == ["d--p", "p"]
    assert read(again.database(DatabaseName("p", "d"))) == {"a": 7}
    again.close()


def test_files_of_a_project_that_is_not_configured_are_left_alone(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, any_project=True)
    put(catalog.database(DatabaseName("old")), clock, 1)
    catalog.close()
    again, _ = make_catalog(tmp_path, ProjectSpec("new"))
    with pytest.raises(UnknownDatabase):
        again.project("old")
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
        catalog.check(name)
    else:
        with pytest.raises(UnknownDatabase):
            catalog.check(name)


def test_a_damaged_file_is_refused_when_the_catalogue_opens(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    put(catalog.database(DatabaseName("p")), clock, {str(n): "x" * 3000 for n in range(200)})
    catalog.close()
    (file,) = tmp_path.glob("p/*.shelf")
    content = bytearray(file.read_bytes())
    content[20 * 4096 : 40 * 4096] = b"\x5a" * (20 * 4096)
    file.write_bytes(content)
    sentence = refusal(tmp_path, "p")
    assert sentence.startswith(f"{file} is damaged (")
    assert "restore it from a backup, after the -wal and the -shm" in sentence
    assert "***" not in sentence


@pytest.mark.parametrize("is_large", [False, True])
def test_a_row_that_cannot_be_read_is_found_when_the_catalogue_opens(
    tmp_path: pathlib.Path, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    put(catalog.database(DatabaseName("p")), clock, {str(n): "x" * 3000 for n in range(20)})
    catalog.close()
    (file,) = tmp_path.glob("p/*.shelf")
    spoil_row(file, "a", "7")
    if is_large:
        monkeypatch.setattr("treedbd.database.catalog.CHECKED_BYTES", 4096)
        make_catalog(tmp_path, ProjectSpec("p"))
    else:
        assert f"{file} is damaged (The row /a/7 cannot be read): restore" in refusal(tmp_path, "p")


def refusal(folder: pathlib.Path, *projects: str, any_project: bool = False) -> str:
    """Return the one sentence by which a catalogue does not open."""
    with pytest.raises(Refused) as caught:
        make_catalog(folder, *map(ProjectSpec, projects), any_project=any_project)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("any_project", [True, False])
def test_a_log_whose_database_is_missing_is_refused(
    tmp_path: pathlib.Path, any_project: bool
) -> None:
    log = tmp_path / "p" / "default.shelf-wal"
    log.parent.mkdir()
    log.write_bytes(b"x")
    sentence = refusal(tmp_path, *([] if any_project else ["p"]), any_project=any_project)
    assert sentence.startswith(f"{log} ")
    assert "default.shelf, is missing: put back" in sentence
    make_catalog(tmp_path, ProjectSpec("other"))


def test_a_project_that_cannot_be_looked_into_is_refused(tmp_path: pathlib.Path) -> None:
    make_catalog(tmp_path, ProjectSpec("p"))
    (tmp_path / "p").mkdir(mode=0)
    with someone_else(tmp_path):
        sentence = refusal(tmp_path, "p")
        make_catalog(tmp_path, ProjectSpec("other"))
    assert f"{tmp_path / 'p'} cannot be looked into (Permission denied): let the user" in sentence


@pytest.mark.parametrize("content", ["file", "link"])
def test_a_project_that_is_no_directory_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    place = tmp_path / "p"
    if content == "file":
        place.touch()
    else:
        place.symlink_to("nowhere")
    assert str(place) in refusal(tmp_path, "p")
    make_catalog(tmp_path, ProjectSpec("other"))


def test_a_database_that_is_a_link_to_nothing_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "p" / "default.shelf"
    file.parent.mkdir()
    file.symlink_to("nowhere")
    assert refusal(tmp_path, "p").startswith(f"{file} cannot be opened (No such file")


def test_the_files_of_the_directory_itself_are_no_projects(tmp_path: pathlib.Path) -> None:
    for name in ("treedb.lock", "development.secret", "localhost.key.pem", "localhost.cert.pem"):
        (tmp_path / name).touch()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "rules.json").write_text('{"rules": {}}')
    make_catalog(tmp_path, ProjectSpec("p"), any_project=True)
