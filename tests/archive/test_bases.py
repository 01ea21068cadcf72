from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.archive.bases import (
    Dump,
    dump,
    load,
    name_base,
    parse_name,
    read_header,
)
from treedbd.archive.packing import pack, unpack
from treedbd.archive.places import FolderPlace, initialise
from treedbd.archive.sealing import Damaged, WrongKey, make_key, parse_key
from treedbd.store.engine import StoreFailed
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.copy import verify_copy
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect

KEY = parse_key(make_key())
NOW_MS = 1_796_000_000_000
CURSOR = b"\x06cstandby"
HOOKS = b"\x06hd"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the file of a database with a cursor and hooks, and its entry in the log."""
    path = tmp_path_factory.mktemp("data") / "app" / "default.shelf"
    path.parent.mkdir()
    with open_shelf(path, "c") as shelf:
        for number in range(300):
            shelf[f"users/u{number}"] = {"name": "x" * 40, "n": number}
        shelf["long"] = "y" * 700_000
    engine = SqliteEngine.open(path)
    transaction = engine.begin()
    transaction.put(CURSOR, b"{}")
    transaction.put(HOOKS, b"[]")
    transaction.commit()
    engine.close()
    return path


def dumped(file: pathlib.Path, **options: Any) -> bytes:
    return b"".join(dump(file, db="app/default", time_ms=NOW_MS, segment=7, **options)[1])


def exported(file: pathlib.Path) -> object:
    with open_shelf(file) as shelf:
        return shelf.export()


@pytest.mark.parametrize("key", [None, KEY])
def test_a_base_is_loaded_as_the_database_that_it_was(
    file: pathlib.Path, tmp_path: pathlib.Path, key: Any
) -> None:
    target = tmp_path / "restored" / "default.shelf"
    header = load([dumped(file, key=key)], target, key)
    assert (header.db, header.sequence, header.segment) == ("app/default", 301, 7)
    assert exported(target) == exported(file)
    engines = [SqliteEngine.open(each) for each in (file, target)]
    old, new = [engine.read(lambda view: next(view.entries(300))) for engine in engines]
    assert (new.sequence, new.op_id) == (old.sequence, old.op_id) == (301, header.op_id)
    assert engines[1].read(lambda view: (view.get(CURSOR), view.get(HOOKS))) == (None, None)
    assert not engines[1].verify()
    for engine in engines:
        engine.close()
    with open_shelf(target, "w") as shelf:
        shelf["a"] = 1  # the history goes on
    assert verify_copy(target) is None


def test_an_empty_database_has_a_base(tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "a.shelf", tmp_path / "new" / "a.shelf"
    open_shelf(old, "c").close()
    header = load([dumped(old)], new)
    assert (header.sequence, header.op_id) == (0, b"")
    assert exported(new) is None


def test_a_base_is_of_one_moment_while_the_file_is_written(tmp_path: pathlib.Path) -> None:
    old, new = tmp_path / "a.shelf", tmp_path / "new" / "a.shelf"
    with open_shelf(old, "c") as shelf:
        shelf["users"] = {f"u{number}": "x" * 3000 for number in range(500)}
        shelf.sync()
        header, chunks = dump(old, db="app/a", time_ms=NOW_MS, segment=1)
        first = next(chunks)
        shelf["users/u0"] = shelf["users/u499"] = "later"
        shelf.sync()
        load([first, *chunks], new)
    assert header.sequence == 1
    restored: Any = exported(new)
    assert set(restored["users"].values()) == {"x" * 3000}


@settings(max_examples=examples(60))
@given(st.data())
def test_a_base_that_is_cut_off_or_changed_is_never_loaded(
    file: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = dumped(file, key=data.draw(st.sampled_from([None, KEY])))
    at = data.draw(st.integers(0, len(whole) - 1))
    wrong = data.draw(
        st.sampled_from([whole[:at], whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :]])
    )
    target = tmp_path_factory.mktemp("t") / "a.shelf"
    with pytest.raises((Damaged, WrongKey)):
        load([wrong], target, KEY, verified=False)
    assert not list(target.parent.iterdir())


def test_rows_that_are_missing_are_found_by_the_footer(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    content = b"".join(unpack([dumped(file)]))
    first = content.index(b"\n") + 1
    size = 8 + sum(int.from_bytes(content[first + at : first + at + 4], "big") for at in (0, 4))
    end = content.rindex(b"\xff\xff\xff\xff")
    for wrong in (
        content[:first] + content[first + size :],
        content[:end] + b"\xff\xff\xff\xff{}\n",
        content + b"\n",
        content[:first] + content[end:],
        content[:end],
    ):
        with pytest.raises(Damaged):
            load(pack([wrong]), tmp_path / "a.shelf", verified=False)
    assert not list(tmp_path.iterdir())


def test_a_damaged_row_is_not_saved(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.shelf"
    with open_shelf(path, "c") as shelf:
        shelf["a"] = 1
    connection = connect(path)
    connection.execute("UPDATE kv SET v = CAST(x'00000000' || v AS BLOB) WHERE k < x'05'")
    assert connection.changes()
    connection.close()
    with pytest.raises(StoreFailed, match="check sum"):
        dumped(path)


def test_a_base_has_the_name_of_its_moment_and_no_other(file: pathlib.Path) -> None:
    header, chunks = dump(file, db="app/default", time_ms=NOW_MS, segment=7)
    name = name_base(header)
    assert name == "bases/app/default/0000000000000301-20261130T005320Z.rows.zst"
    found = parse_name(name)
    assert found is not None
    assert (found.db, found.sequence, found.time_ms) == ("app/default", 301, NOW_MS)
    whole = list(chunks)
    assert read_header(whole, name=name) == header
    with pytest.raises(Damaged, match="another name"):
        read_header(whole, name=name.replace("301", "302"))
    for other in (name.replace("2026", "9999") + "x", name.replace("1130", "1399"), "bases/a/b"):
        assert parse_name(other) is None


def test_nothing_is_overwritten(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "a.shelf"
    target.write_bytes(b"")
    with pytest.raises(FileExistsError):
        load([dumped(file)], target)
    assert target.read_bytes() == b""


LOADING = """
import pathlib, sys
from treedbd.archive.bases import load
load([sys.stdin.buffer.read()], pathlib.Path(sys.argv[1]), verified=False)
"""


@pytest.mark.parametrize(
    ("call", "number"), [("pwrite64", 20), ("fsync", 1), ("rename", 1), ("rename", 2), ("fsync", 4)]
)
def test_a_load_that_is_killed_leaves_a_whole_file_or_none(
    file: pathlib.Path, tmp_path: pathlib.Path, call: str, number: int
) -> None:
    target = tmp_path / "new" / "default.shelf"
    base = dumped(file)
    command = ["strace", "-f", "-o", str(tmp_path / "trace"), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
    command += [sys.executable, "-B", "-c", LOADING, str(target)]
    ended = subprocess.run(command, input=base, check=False)
    if target.exists():
        assert verify_copy(target) is None
    else:
        assert ended.returncode
        load([base], target)
    assert exported(target) == exported(file)
    engine = SqliteEngine.open(target)
    assert not engine.verify()
    engine.close()


def test_a_loaded_file_is_synced_before_it_has_its_name(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target, trace = tmp_path / "new" / "default.shelf", tmp_path / "trace"
    command = ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=pwrite64,fsync,rename"]
    command += [sys.executable, "-B", "-c", LOADING, str(target)]
    subprocess.run(command, input=dumped(file), check=True)
    lines = [line for line in trace.read_text().splitlines() if f"{target}.loading" in line]
    calls = [line.split("(")[0].split()[-1] for line in lines]
    assert calls[-2:] == ["fsync", "rename"]
    assert "pwrite64" in calls
    assert "fsync" in trace.read_text().rpartition("rename(")[2]  # of the directory


def test_a_log_of_another_file_does_not_count(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "new" / "default.shelf"
    target.parent.mkdir()
    (target.parent / "default.shelf-wal").write_bytes(b"x" * 40_000)
    (target.parent / "default.shelf-mark").write_bytes(b"x" * 8192)
    load([dumped(file)], target)
    assert [each.name for each in sorted(target.parent.iterdir())] == [
        "default.shelf",
        "default.shelf-mark",
    ]


def test_the_process_of_a_base_writes_it_and_reports(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    place = FolderPlace(tmp_path / "archive", may_create=True)
    order = {"file": str(file), "db": "app/default", "time": NOW_MS, "segment": 7, "to": place.text}
    assert "mounted" in run(order)["problem"]
    initialise(place, None, 1)
    report = run(order)
    assert report["seq"] == 301
    listed = list(place.list("bases/"))
    assert [(info.name, info.size) for info in listed] == [(report["name"], report["bytes"])]
    assert load(place.get(report["name"]), tmp_path / "a.shelf").op_id.hex() == report["op"]
    assert "a base" in run(order)["problem"]
    for wrong in ({"file": str(tmp_path / "none.shelf")}, {"key_file": str(tmp_path / "none")}):
        assert run(order | wrong)["problem"]
    assert len(list(place.list("bases/"))) == 1


def run(order: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "treedbd.archive.process", "base"]
    ended = subprocess.run(command, input=orjson.dumps(order), capture_output=True, check=True)
    assert not ended.stderr
    report: dict[str, Any] = orjson.loads(ended.stdout)
    return report


def test_a_dump_needs_little_memory_and_counts_its_rows(file: pathlib.Path) -> None:
    moment = Dump(file, db="app/default", time_ms=NOW_MS, segment=7)
    pieces = [len(piece) for piece in unpack(moment.chunks())]
    assert moment.rows > 1
    assert max(pieces) <= 1024 * 1024
    moment.close()
