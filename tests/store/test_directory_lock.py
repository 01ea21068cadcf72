from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.rights import someone_else
from tests.store.sqlite.disk_space import limited_file_size
from treedbd.store.directory_lock import DirectoryInUse, DirectoryLock, find_other, read_urls
from treedbd.store.engine import CannotOpenStore

HOLD = """
import pathlib, sys
from treedbd.store.directory_lock import DirectoryLock, find_other
lock = DirectoryLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_locked_once(tmp_path: pathlib.Path) -> None:
    lock = DirectoryLock(tmp_path)
    for _ in range(2):
        with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
            DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()
    DirectoryLock(tmp_path).release()


def test_a_full_disk_keeps_nobody_from_locking(tmp_path: pathlib.Path) -> None:
    with limited_file_size(0):
        lock = DirectoryLock(tmp_path)
        lock.note_urls(["http://127.0.0.1:1"])
        with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
            DirectoryLock(tmp_path)
        lock.release()
    assert read_urls(tmp_path) == []


def test_other_directories_are_not_locked(tmp_path: pathlib.Path) -> None:
    first, second = (DirectoryLock(tmp_path / name) for name in ("a", "b"))
    first.release()
    DirectoryLock(tmp_path / "a").release()
    with pytest.raises(CannotOpenStore, match="is in use by another treedb"):
        DirectoryLock(tmp_path / "b")
    second.release()


def test_the_error_names_the_directory_and_the_process(tmp_path: pathlib.Path) -> None:
    with hold(tmp_path) as holder:
        with pytest.raises(CannotOpenStore) as caught:
            DirectoryLock(tmp_path)
        assert str(caught.value) == (
            f"The data directory {tmp_path} is in use by another treedb (process {holder.pid}): "
            "stop that process, or choose another directory."
        )


def test_a_killed_process_holds_no_lock(tmp_path: pathlib.Path) -> None:
    with hold(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / "treedb.lock").read_text() == f"{holder.pid}\n"
    DirectoryLock(tmp_path).release()


def test_the_directory_is_created_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "new" / "data"
    DirectoryLock(directory).release()
    paths = (directory.parent, directory, directory / "treedb.lock")
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o700, 0o600]


def test_an_existing_directory_keeps_its_mode(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o750)
    DirectoryLock(tmp_path).release()
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_a_directory_that_cannot_be_used_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "closed").mkdir(mode=0o500)
    with someone_else(tmp_path):
        for name in ("file", "file/below", "closed", "closed/below"):
            directory = tmp_path / name
            with pytest.raises(
                CannotOpenStore, match=f"The data directory {directory} cannot be used"
            ):
                DirectoryLock(directory)


def test_a_lock_file_that_cannot_be_opened_is_named_and_not_the_directory(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "treedb.lock"
    file.touch(mode=0)
    with someone_else(tmp_path), pytest.raises(CannotOpenStore) as caught:
        DirectoryLock(tmp_path)
    assert str(caught.value) == (
        f"The lock file {file} cannot be opened (Permission denied): "
        "make the user that runs treedb the owner of it and of everything beside it."
    )


def test_a_directory_in_place_of_the_lock_file_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "treedb.lock").mkdir()
    sentence = f"The lock file {tmp_path / 'treedb.lock'} cannot be opened .Is a directory."
    with pytest.raises(CannotOpenStore, match=sentence):
        DirectoryLock(tmp_path)


def lock_file_removed(file: pathlib.Path) -> None:
    file.unlink()


def lock_file_renamed(file: pathlib.Path) -> None:
    file.rename(file.with_name("aside"))


def lock_file_replaced(file: pathlib.Path) -> None:
    file.unlink()
    file.write_bytes(b"1\n")


def lock_file_copied(file: pathlib.Path) -> None:
    copy = file.with_name("copy")
    shutil.copy(file, copy)
    copy.replace(file)


def directory_moved(file: pathlib.Path) -> None:
    moved = file.parent.rename(file.parent.with_name("moved"))
    file.parent.symlink_to(moved)


@pytest.mark.parametrize(
    "harm",
    [
        lock_file_removed,
        lock_file_renamed,
        lock_file_replaced,
        lock_file_copied,
        directory_moved,
    ],
)
def test_whatever_happens_to_the_lock_file_no_other_process_locks_the_directory(
    tmp_path: pathlib.Path, harm: Callable[[pathlib.Path], None]
) -> None:
    data = tmp_path / "data"
    with hold(data) as holder:
        harm(data / "treedb.lock")
        before = sorted(os.listdir(data))
        for _ in range(2):  # the first attempt must not make the second one succeed
            with pytest.raises(DirectoryInUse, match="is in use by another treedb"):
                DirectoryLock(data)
            found = find_other(data)
            assert found is not None
            # Another file may say anything.
            assert (found.holder, found.urls) in (("", ()), (str(holder.pid), ()))
        assert sorted(os.listdir(data)) == before
        holder.kill()
    DirectoryLock(data).release()


def test_the_error_says_that_the_lock_file_is_not_in_its_place(tmp_path: pathlib.Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.note_urls(["http://127.0.0.1:1"])
    shutil.copy(tmp_path / "treedb.lock", tmp_path / "copy")
    (tmp_path / "copy").replace(tmp_path / "treedb.lock")
    with pytest.raises(DirectoryInUse) as caught:
        DirectoryLock(tmp_path)
    assert str(caught.value) == (
        f"The data directory {tmp_path} is in use by another treedb, whose treedb.lock was moved, "
        "removed or replaced: stop that process, or choose another directory."
    )
    assert caught.value.urls == ()
    lock.release()


@pytest.mark.parametrize("kind", ["symbolic link", "named pipe"])
def test_what_is_not_a_lock_file_is_neither_followed_nor_waited_for(
    tmp_path: pathlib.Path, kind: str
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir()
    other.write_text("not to be overwritten")
    if kind == "symbolic link":
        (data / "treedb.lock").symlink_to(other)
    else:
        os.mkfifo(data / "treedb.lock")
    with pytest.raises(CannotOpenStore, match=r"treedb\.lock cannot be opened .*: it is not a reg"):
        DirectoryLock(data)
    assert other.read_text() == "not to be overwritten"
    assert find_other(data) is None
    assert read_urls(data) == []


@pytest.mark.parametrize("what", ["treedb.lock", "."])
def test_what_is_replaced_while_it_is_being_locked_is_locked_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    data = tmp_path / "data"
    DirectoryLock(data).release()
    calls = iter((1,))

    def lock(descriptor: int, operation: int) -> None:
        real_lock(descriptor, operation)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            for number in calls:  # after the file was opened and locked, once
                replaced = (data / what).resolve()
                replaced.rename(tmp_path / f"replaced-{number}")

    real_lock = fcntl.flock
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lock)
        held = DirectoryLock(data)
    assert held.is_in_place()
    assert (data / "treedb.lock").read_text() == f"{os.getpid()}\n"
    held.release()


def test_a_lock_is_held_until_the_last_process_that_has_inherited_it_ends(
    tmp_path: pathlib.Path,
) -> None:
    lock = DirectoryLock(tmp_path)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=lock.descriptors)
    with child:
        lock.release()
        (tmp_path / "treedb.lock").unlink()
        with pytest.raises(DirectoryInUse):
            DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()


def test_where_directories_cannot_be_locked_the_file_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "as over NFS")
        real_lock(descriptor, operation)

    real_lock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lock)
    held = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
        DirectoryLock(tmp_path)
    held.release()
    assert find_other(tmp_path) is None


def hold(directory: pathlib.Path) -> subprocess.Popen[str]:
    """Hold the lock in another process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_in_place_while_its_file_is(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "data"
    lock = DirectoryLock(folder)
    assert lock.is_in_place()
    moved = folder.rename(tmp_path / "moved")
    assert not lock.is_in_place()
    other = DirectoryLock(folder)
    assert (lock.is_in_place(), other.is_in_place()) == (False, True)
    other.release()
    (folder / "treedb.lock").unlink()
    folder.rmdir()
    moved.rename(folder)
    assert lock.is_in_place()
    lock.release()


def test_another_process_is_found_with_its_urls_and_nothing_is_changed(
    tmp_path: pathlib.Path,
) -> None:
    assert find_other(tmp_path / "missing") is None
    assert find_other(tmp_path) is None
    assert not list(tmp_path.iterdir())
    lock = DirectoryLock(tmp_path)
    lock.note_urls(["https://127.0.0.1:1", "http://127.0.0.1:2"])
    found = find_other(tmp_path)
    assert found is not None
    assert found.urls == ("https://127.0.0.1:1", "http://127.0.0.1:2")
    assert found.holder == str(os.getpid())
    lock.release()
    assert find_other(tmp_path) is None
