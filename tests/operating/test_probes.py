"""What is looked up for metrics: sizes of files, the last backup, the process."""

from __future__ import annotations

import os
import pathlib

from treedbd.database.data_directory import BACKUP_NOTE
from treedbd.database.runtime import Problem
from treedbd.names import DatabaseName
from treedbd.operating.metrics import LARGEST, Facts, Probes, add_problems


def write(folder: pathlib.Path, project: str, name: str, size: int) -> None:
    (folder / project).mkdir(exist_ok=True)
    (folder / project / name).write_bytes(bytes(size))


def known(project: str) -> str:
    return project if project == "shop" else ""


def test_the_files_of_a_database_are_added_up_and_other_projects_have_no_name(
    tmp_path: pathlib.Path,
) -> None:
    for name, size in (("eu.shelf", 10), ("eu.shelf-wal", 5), ("us.shelf", 1), ("rules.json", 99)):
        write(tmp_path, "shop", name, size)
    write(tmp_path, "foreign", "default.shelf", 7)
    facts = Probes(tmp_path, known).look_at_data()
    assert facts.database_bytes == {
        DatabaseName("shop", "eu"): 15,
        DatabaseName("shop", "us"): 1,
    }
    assert facts.project_bytes == {"shop": 16, "": 7}
    assert (facts.disk_free_bytes or 0) > 0


def test_only_the_largest_databases_are_named(tmp_path: pathlib.Path) -> None:
    for number in range(LARGEST * 2):
        write(tmp_path, "shop", f"d{number}.shelf", number)
    facts = Probes(tmp_path, known).look_at_data()
    assert sorted(facts.database_bytes.values()) == list(range(LARGEST, LARGEST * 2))
    assert facts.project_bytes == {"shop": sum(range(LARGEST * 2))}


def test_the_last_backup_is_when_its_note_was_left(tmp_path: pathlib.Path) -> None:
    probes = Probes(tmp_path, known)
    assert probes.look_at_data().last_backup_at == 0
    (tmp_path / BACKUP_NOTE).write_bytes(b"")
    os.utime(tmp_path / BACKUP_NOTE, (1, 1_700_000_000))
    assert probes.look_at_data().last_backup_at == 1_700_000_000
    without = Probes(tmp_path, known, has_backups=False)
    assert without.look_at_data().last_backup_at is None


def test_without_files_there_is_nothing_to_be_measured() -> None:
    assert Probes(None, known).look_at_data() == Facts()


def test_problems_are_counted_and_among_them_those_that_refuse_writes() -> None:
    problems = [Problem("shop", None, "a", refuses_writes=False), Problem("shop", "eu", "b")]
    facts = add_problems(Facts(), problems, 5.0)
    assert (facts.problems, facts.write_problems, facts.certificate_ends_at) == (2, 1, 5.0)


def test_the_process_is_measured_by_the_names_of_prometheus() -> None:
    found = Probes(None, known).look_at_process()
    assert found["process_open_fds"] > 0
    assert found["process_resident_memory_bytes"] > 1e6


def test_the_memory_of_the_process_grows_with_what_it_holds() -> None:
    probes = Probes(None, known)
    before = probes.look_at_process()["process_resident_memory_bytes"]
    held = bytearray(b"x") * 64_000_000  # written, so that it is in memory
    after = probes.look_at_process()["process_resident_memory_bytes"]
    assert after > before
    assert len(held) == 64_000_000
