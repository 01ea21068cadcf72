"""The catalog: which databases there are, and when their files are created, opened and closed."""

from __future__ import annotations

import gc
import pathlib

import pytest
from twisted.internet.task import Clock

from tests.database.world import run_at_once
from tests.injection import corrupt_row
from tests.rights import someone_else
from tests.store.conformance import put_all
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database, ProjectSpec
from treedbd.database.errors import PermissionDenied, Unavailable, UnknownDatabase
from treedbd.database.requests import Caller, Outcome, Write
from treedbd.database.runtime import Runtime
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place
from treedbd.tree.value import plain

ANONYMOUS = Caller(None)


def make_catalog(
    folder: pathlib.Path,
    *projects: ProjectSpec,
    any_project: bool = False,
    allow: bool = True,
    max_databases: int = 100,
) -> tuple[Catalog, Clock]:
    clock = Clock()
    catalog = Catalog(
        folder,
        "sqlite",
        {project.name: project for project in projects},
        any_project=any_project,
        first_rules=OPEN if allow else DENY,
        max_databases=max_databases,
        runtime=Runtime(clock, bytes, run_at_once),
        retain_events=10,
    )
    catalog.open()
    return catalog, clock


def put(database: Database, clock: Clock, value: Json) -> Outcome | Exception:
    found: list[Outcome | Exception] = []
    waiting = database.write(Write(make_put(Place(("a",)), value), 0, ANONYMOUS))
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    clock.advance(0)
    (result,) = found
    return result


def read(database: Database) -> Json:
    return database.read(lambda nodes: plain(nodes.get(())))


def shelves(folder: pathlib.Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.glob("*/*.shelf"))


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


def test_a_database_file_that_has_appeared_meanwhile_is_not_overwritten(
    tmp_path: pathlib.Path,
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p", None))
    database = catalog.find(DatabaseName("p", "d"))
    appeared = SqliteEngine.create(tmp_path / "p" / "d.shelf")
    put_all(appeared, [(b"", b'{"kept":1}')])
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
    assert len(catalog._unwritten) == 0


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


def test_a_damaged_file_is_refused_when_the_catalog_opens(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    put(catalog.find(DatabaseName("p")), clock, {str(n): "x" * 3000 for n in range(200)})
    catalog.close()
    (file,) = tmp_path.glob("p/*.shelf")
    content = bytearray(file.read_bytes())
    content[20 * 4096 : 40 * 4096] = b"\x5a" * (20 * 4096)
    file.write_bytes(content)
    sentence = refusal(tmp_path, "p")
    assert sentence.startswith(f"{file} is damaged (")
    assert "restore it from a backup, after removing the -wal and the -shm" in sentence
    assert "***" not in sentence


@pytest.mark.parametrize("is_large", [False, True])
def test_a_row_that_cannot_be_read_is_found_when_the_catalog_opens(
    tmp_path: pathlib.Path, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, clock = make_catalog(tmp_path, ProjectSpec("p"))
    put(catalog.find(DatabaseName("p")), clock, {str(n): "x" * 3000 for n in range(20)})
    catalog.close()
    (file,) = tmp_path.glob("p/*.shelf")
    corrupt_row(file, "a", "7")
    if is_large:
        monkeypatch.setattr("treedbd.database.catalog.CHECKED_BYTES", 4096)
        make_catalog(tmp_path, ProjectSpec("p"))
    else:
        assert f"{file} is damaged (The row /a/7 cannot be read): restore" in refusal(tmp_path, "p")


def refusal(folder: pathlib.Path, *projects: str, any_project: bool = False) -> str:
    """Return the sentence that says why a catalog cannot be opened."""
    with pytest.raises(CannotOpenStore) as caught:
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
    assert "default.shelf, is missing: put that file back" in sentence
    make_catalog(tmp_path, ProjectSpec("other"))


def test_a_project_directory_that_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    make_catalog(tmp_path, ProjectSpec("p"))
    (tmp_path / "p").mkdir(mode=0)
    with someone_else(tmp_path):
        sentence = refusal(tmp_path, "p")
        make_catalog(tmp_path, ProjectSpec("other"))
    assert f"{tmp_path / 'p'} cannot be read (Permission denied): let the user" in sentence


@pytest.mark.parametrize("content", ["file", "link"])
def test_a_project_that_is_not_a_directory_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    file = tmp_path / "p"
    if content == "file":
        file.touch()
    else:
        file.symlink_to("nowhere")
    assert str(file) in refusal(tmp_path, "p")
    make_catalog(tmp_path, ProjectSpec("other"))


def test_a_database_that_is_a_broken_link_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "p" / "default.shelf"
    file.parent.mkdir()
    file.symlink_to("nowhere")
    assert refusal(tmp_path, "p").startswith(f"{file} cannot be opened (No such file")


def test_files_directly_in_the_data_directory_are_not_projects(tmp_path: pathlib.Path) -> None:
    for name in ("treedb.lock", "development.secret", "localhost.key.pem", "localhost.cert.pem"):
        (tmp_path / name).touch()
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "rules.json").write_text('{"rules": {}}')
    make_catalog(tmp_path, ProjectSpec("p"), any_project=True)
