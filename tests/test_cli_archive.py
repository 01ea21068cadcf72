"""The commands of an archive: what it holds, its moments restored and verified."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.archive.restored import tree_in
from tests.archive.written_history import START_MS, WrittenHistory
from tests.command import CommandResult, environment, run_here
from tests.daemon import Daemon
from treedbd.archive.places import MARKER
from treedbd.archive.restoring import Goal, ToLatest, ToSequence, ToTime
from treedbd.archive.sealing import parse_key
from treedbd.archive.segments import make_header, write_segment
from treedbd.cli.archive import parse_when
from treedbd.cli.path_restore import compare
from treedbd.rules.ruleset import OPEN
from treedbd.store.directory_lock import LOCK_FILE

DB = "app/default"
NAMES = ("treedb-archive.json", "bases", "segments")


def fill(folder: pathlib.Path, key: str | None = None) -> WrittenHistory:
    """Write a history: number n of the database is written n seconds after its beginning."""
    history = WrittenHistory(folder, 1, None if key is None else parse_key(key))
    history.put_rules(OPEN.text)
    history.put(DB, "users/ada", {"name": "Ada", "age": 36, ".priority": 1})
    history.make_base(DB)
    history.deliver()
    for number in range(2, 6):
        history.put(DB, "count", number)
    history.deliver()
    history.make_base(DB)
    history.put(DB, "users/ada", None)
    history.deliver()
    history.put(DB, "users/bob", {"name": "Bob"})
    history.deliver()
    return history


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with an archive of one database."""
    folder = tmp_path_factory.mktemp("made")
    history = fill(folder)
    history.close()
    return folder / "archive"


@pytest.fixture
def archive(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of that archive."""
    shutil.copytree(made, tmp_path / "archive")
    return tmp_path / "archive"


def restore(archive: pathlib.Path, to: object, target: pathlib.Path, *more: str) -> CommandResult:
    return run_here("restore", "--to", str(to), *more, archive, target)


KILLED_RESTORES = """
import json, os, pathlib, shutil, signal, sys
import treedbd.cli.path_restore, treedbd.cli.parser
from treedbd.cli.main import main

words, out = sys.argv[1:], pathlib.Path(sys.argv[-1])


def kill_at(number):
    def counted(call):
        def run(*arguments, **more):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **more)
        return run
    global left
    left = number
    for name in ("fsync", "mkdir", "rename", "rmdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


for number in range(1, 1000):
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        kill_at(number)
        os._exit(main(words))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    files = {str(each.relative_to(out)): each.read_bytes().hex()[:200] for each in out.glob("*/*")}
    print(json.dumps([status, files]))
    if status >= 0:
        break
    shutil.rmtree(out, ignore_errors=True)
"""
"""A command that is killed again and again, each time at the next call that changes names."""


def at(seconds: float) -> str:
    """Return a time of the history as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_MS / 1000 + seconds))


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("latest", ToLatest()),
        ("12", ToSequence(12)),
        ("2026-11-29T08:30:00Z", ToTime(1_795_941_000_000)),
        ("2026-11-29 09:30:00.5+01:00", ToTime(1_795_941_000_500)),
        ("10min ago", ToTime(400_000)),
        ("2 h ago", ToTime(-6_200_000)),
    ],
)
def test_a_moment_is_a_time_a_number_or_the_latest(text: str, goal: Goal) -> None:
    assert parse_when(text, lambda: 1000.0) == goal


@pytest.mark.parametrize(
    ("text", "reason"),
    [("2026-11-29T08:30:00", "zone"), ("yesterday", "must be latest"), ("-5", "argument --to")],
)
def test_another_moment_is_a_usage_error(text: str, reason: str, tmp_path: pathlib.Path) -> None:
    result = run_here("restore", "--to", text, tmp_path, tmp_path / "out")
    assert (result.status, result.output) == (2, b"")
    assert reason in result.errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["restore", "x", "--yes"], "--yes needs --path"),
        (["restore", "x", "--database", "a/b"], "--database needs --to"),
        (["restore", "x", "y"], "TARGET needs --to"),
        (["restore", "--to", "latest", "--path", "/a", "x"], "needs the URL"),
        (["restore", "--to", "latest", "--path", "/a", "x", "http://localhost:1/b"], "by --path"),
        (["restore", "--to", "latest", "--database", "a", "x", "y"], "PROJECT/NAME"),
        (["backup", "verify"], "needs a SOURCE"),
        (["backup", "x", "y"], "for verify"),
        (["backup", "x", "--key", "y"], "for verify"),
    ],
)
def test_words_that_do_not_go_together_are_a_usage_error(words: list[str], reason: str) -> None:
    result = run_here(*words)
    assert (result.status, result.output) == (2, b"")
    assert reason in result.errors


def test_an_archive_lists_what_can_be_restored(made: pathlib.Path) -> None:
    text = run_here("archive", "ls", made).text
    assert text.splitlines()[1] == DB
    assert "numbers 0 to 7, 2 bases" in text
    (database,) = json.loads(run_here("archive", "ls", "--json", made).text)["databases"]
    (span,) = database["spans"]
    assert (span["first"], span["last"], span["to"]) == (0, 7, at(7).replace("Z", ".000Z"))
    assert [base["number"] for base in span["bases"]] == [1, 5]
    assert (database["gaps"], database["deleted"]) == ([], [])


@pytest.mark.parametrize(
    ("to", "number"),
    [("latest", 7), (3, 3), (5, 5), (at(1), 1), (at(6.5), 6), (at(4), 4), (at(1000), 7)],
)
def test_a_moment_is_restored_with_the_rules(
    made: pathlib.Path, tmp_path: pathlib.Path, to: object, number: int
) -> None:
    text = restore(made, to, tmp_path / "out").text
    assert f"{DB}: number {number}, written {at(number)[:-1]}.000Z" in text
    tree = tree_in(tmp_path / "out" / "app" / "default.shelf")
    assert isinstance(tree, dict)
    assert ("ada" in str(tree), "bob" in str(tree)) == (number < 6, number == 7)
    assert tree.get("count") == (None if number < 2 else min(number, 5))
    assert (tmp_path / "out" / "app" / "rules.json").read_text() == OPEN.text
    assert not (tmp_path / "out.restoring").exists()


@pytest.mark.parametrize(
    ("to", "more", "reason"),
    [
        (8, [], "Number 8 of app/default cannot be restored: the nearest one is 7."),
        (at(-5), [], "There was no database then."),
        ("latest", ["--database", "app/no"], "The archive has no database app/no."),
    ],
)
def test_a_moment_that_is_not_there_is_an_error(
    made: pathlib.Path, tmp_path: pathlib.Path, to: object, more: list[str], reason: str
) -> None:
    assert restore(made, to, tmp_path / "out", *more).error == reason
    assert not list(tmp_path.iterdir())


def test_a_moment_before_the_first_base_is_an_error_that_names_the_first(
    tmp_path: pathlib.Path,
) -> None:
    history = WrittenHistory(tmp_path, 1)
    for number in range(1, 4):
        history.put(DB, "count", number)
    history.leave_out(DB)
    history.make_base(DB)
    history.put(DB, "count", 4)
    history.deliver()
    history.close()
    source, out = tmp_path / "archive", tmp_path / "out"
    first = at(3).replace("Z", ".000Z")
    assert restore(source, at(2), out).error == (
        f"{DB} cannot be restored to a time before {first}."
    )
    assert "the nearest one is 3." in restore(source, 2, out).error
    assert f"{DB}: number 3, written {first}" in restore(source, at(3), out).text


def test_a_directory_with_data_and_one_in_the_archive_are_refused(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is not empty" in restore(made, "latest", tmp_path).error
    assert "is in the archive" in restore(made, "latest", made / "out").error
    assert "is an archive: say which moment by --to" in run_here("restore", made).error
    assert {each.name for each in tmp_path.iterdir()} == {"file", LOCK_FILE}
    (tmp_path / "empty").mkdir()
    assert "is not an archive" in restore(tmp_path / "empty", 1, tmp_path / "out").error
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_used_is_named(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    mounted = run_here("restore", "--to", "latest", made, "/proc")
    assert (mounted.status, "/proc is a mount point" in mounted.errors) == (1, True)
    os.mkfifo(tmp_path / "pipe", 0o600)
    pipe = run_here("archive", "ls", made, "--key", tmp_path / "pipe")
    assert (pipe.status, "is not a regular file" in pipe.errors) == (1, True)
    missing = run_here("archive", "ls", made, "--key", tmp_path / "missing")
    assert (missing.status, "The key file" in missing.errors) == (1, True)


def test_a_segment_that_is_missing_is_named_also_where_no_chain_is_broken(
    archive: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    *_, last = objects(archive, "segments")
    number = int(last.name.partition(".")[0])

    def add(number: int) -> None:
        header = make_header(number, START_MS, {}, [])
        file = last.with_name(f"{number:012}.jsonl.zst")
        file.write_bytes(b"".join(write_segment(header, [])))

    add(number + 1)
    assert restore(archive, "latest", tmp_path / "whole").status == 0
    add(number + 3)
    result = restore(archive, "latest", tmp_path / "out")
    assert result.status == 3
    assert f"Segments {number + 2} to {number + 2} of the archive are missing." in result.errors
    verified = run_here("backup", "verify", archive)
    assert (verified.status, "are missing" in verified.errors) == (1, True)


def test_a_time_to_come_is_the_last_moment_and_a_warning(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    result = run_here("restore", "--to", "2999-01-01T00:00:00Z", made, tmp_path / "out")
    assert (result.status, "later than now" in result.errors) == (0, True)


def test_a_restore_that_is_killed_leaves_nothing_or_all(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words = ["restore", "--to", "6", str(made), str(tmp_path / "out")]
    script = [sys.executable, "-c", KILLED_RESTORES, *words]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True, check=True)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    status, whole = runs.pop()
    assert status == 0, done.stderr
    assert "app/default.shelf" in whole
    assert len(runs) > 20
    assert {status for status, _ in runs} == {-9}
    assert [files for _, files in runs if files not in ({}, whole)] == []
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_daemon_goes_on_with_what_was_restored(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    restore(made, 5, tmp_path / "data")
    with Daemon(tmp_path) as daemon:
        headers = {"Host": "app.localhost"}
        assert json.loads(daemon.request("GET", "/count.json", b"", headers).body) == 5
        assert daemon.request("PUT", "/more.json", b"1", headers).status == 200
        log = run_here("log", f"{daemon.http}/?ns=app", token="owner").text
    numbers = [json.loads(line)["seq"] for line in log.splitlines()]
    assert sorted(numbers) == [5, 6]


def objects(archive: pathlib.Path, kind: str) -> list[pathlib.Path]:
    return sorted((archive / kind).rglob("*.zst*"))


def flip(file: pathlib.Path, at: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 4
    file.write_bytes(content)


def cut(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def swap_bases(archive: pathlib.Path) -> None:
    first, second = objects(archive, "bases")
    first.replace(second)


BASE_DAMAGES: dict[str, Callable[[pathlib.Path], object]] = {
    "a bit": lambda archive: flip(objects(archive, "bases")[1]),
    "the end": lambda archive: cut(objects(archive, "bases")[1]),
    "another name": swap_bases,
    "foreign": lambda archive: objects(archive, "bases")[1].write_bytes(b"{}\n"),
}


@pytest.mark.parametrize("damage", BASE_DAMAGES)
def test_without_a_base_an_older_one_is_used(
    archive: pathlib.Path, tmp_path: pathlib.Path, damage: str
) -> None:
    BASE_DAMAGES[damage](archive)
    result = restore(archive, "latest", tmp_path / "out")
    assert result.status == 0
    assert "1 object cannot be read" in result.errors
    tree = tree_in(tmp_path / "out" / "app" / "default.shelf")
    assert tree == {"count": 5, "users": {"bob": {"name": "Bob"}}}
    result = run_here("backup", "verify", archive)
    assert (result.status, result.output) == (1, b"")
    assert "bases/app/default" in result.errors


def swap_segments(archive: pathlib.Path) -> None:
    _, second, third, _ = objects(archive, "segments")
    third.replace(second)


DAMAGES: dict[str, Callable[[pathlib.Path], object]] = {
    "a bit of a segment": lambda archive: flip(objects(archive, "segments")[2], 0.9),
    "the head of a segment": lambda archive: flip(objects(archive, "segments")[2], 0.2),
    "the end of a segment": lambda archive: cut(objects(archive, "segments")[3]),
    "a segment is missing": lambda archive: objects(archive, "segments")[2].unlink(),
    "a segment is foreign": lambda archive: objects(archive, "segments")[2].write_bytes(b"{}\n"),
    "a segment has another name": swap_segments,
    "an archive of later times": lambda archive: (archive / MARKER).write_text('{"format": 2}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_archive_nothing_is_restored(
    archive: pathlib.Path, tmp_path: pathlib.Path, damage: str
) -> None:
    DAMAGES[damage](archive)
    assert restore(archive, "latest", tmp_path / "out").error.endswith(".")
    assert [each.name for each in tmp_path.iterdir()] == ["archive"]
    result = run_here("backup", "verify", archive)
    assert (result.status, result.output) == (1, b"")
    assert "Traceback" not in result.errors


def test_what_a_damage_does_not_concern_can_be_restored(
    archive: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    objects(archive, "segments")[2].unlink()
    assert f"{DB}: number 5, " in restore(archive, 5, tmp_path / "out").text
    error = restore(archive, "latest", tmp_path / "other").error
    assert "Restore to number 5 to go on without them" in error
    assert "nearest one is 5" in restore(archive, 6, tmp_path / "other").error


def test_a_hole_that_the_archive_explains_is_a_warning(tmp_path: pathlib.Path) -> None:
    history = fill(tmp_path)
    history.put(DB, "lost", 1)
    history.note_gap(DB, "The cursor was dropped.")
    history.make_base(DB)
    history.deliver()
    history.close()
    result = restore(tmp_path / "archive", at(7.5), tmp_path / "out")
    assert result.status == 3
    assert "number 7, " in result.output.decode()
    assert "after number 7 are missing (The cursor was dropped)" in result.errors
    assert run_here("backup", "verify", tmp_path / "archive").status == 0


def test_a_sealed_archive_needs_its_key(tmp_path: pathlib.Path) -> None:
    for name in ("key", "other"):
        assert run_here("archive", "key", tmp_path / name).text
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert "is there already" in run_here("archive", "key", tmp_path / "key").error
    history = fill(tmp_path, (tmp_path / "key").read_text())
    history.close()
    source, out = tmp_path / "archive", tmp_path / "out"
    for more in ([], ["--key", str(tmp_path / "other")], ["--key", str(tmp_path / "none")]):
        assert restore(source, "latest", out, *more).error
        assert run_here("backup", "verify", source, *more).error
        assert run_here("archive", "ls", source, *more).error
    assert not out.exists()
    more = ["--key", str(tmp_path / "key")]
    assert "verified" in run_here("backup", "verify", source, *more).text
    assert "number 7" in restore(source, "latest", out, *more).text
    flip(objects(source, "segments")[3])
    assert "damaged" in restore(source, "latest", tmp_path / "x", *more).error


def test_backups_are_verified(made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data"
    restore(made, 5, data)
    for _ in range(2):
        run_here("backup", "--quiet", "--data", data, "--keep", "2", tmp_path / "backups")
    assert "2 backups, verified" in run_here("backup", "verify", tmp_path / "backups").text
    flip(tmp_path / "backups" / "0001" / "app" / "default.shelf")
    result = run_here("backup", "verify", tmp_path / "backups")
    assert (result.status, result.output) == (1, b"")
    assert "0001" in result.errors
    assert "1 fault" in result.errors
    assert "verified" in run_here("backup", "verify", tmp_path / "backups" / "0002").text
    assert "neither a backup nor an archive" in run_here("backup", "verify", data).error


def test_two_values_are_compared_place_by_place() -> None:
    before: Any = {"a": 1, "b": {"x": 1, "y": 2}, "c": {".value": 1, ".priority": 1}, "d": True}
    after: Any = {"a": 1, "b": {"x": 1.5, "z": 3}, "c": {".value": 2}, "d": 1, ".priority": "p"}
    found = [(each.kind, each.path, each.before, each.after) for each in compare(before, after)]
    assert found == [
        ("changed", ("b", "x"), 1, 1.5),
        ("removed", ("b", "y"), 2, None),
        ("added", ("b", "z"), None, 3),
        ("changed", ("c",), 1, 2),
        ("removed", ("c", ".priority"), 1, None),
        ("changed", ("d",), True, 1),
        ("added", (".priority",), None, "p"),
    ]
    assert not list(compare(before, before))
    assert [each.kind for each in compare({"x": 1}, 5)] == ["changed"]
