"""Cut the power after a database was closed, on real file systems; none may be refused afterwards.

    .venv/bin/python bench/power_cuts.py [--rounds N] [--systems btrfs,ext4,xfs]

To be run as root on Linux, with the `mkfs` of each file system. A file system in a file is mounted,
and a database is written and closed in it. What has reached the file at that moment is what a power
failure leaves: a copy of it is mounted then, and the database is opened there. Printed is, for each
file system and each moment, in how many rounds it was refused, was not known to be closed cleanly,
or had its log again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.engine import SqliteEngine

IMAGE_BYTES: Final = 320 * 1024 * 1024
MAKE: Final = {
    "btrfs": ["mkfs.btrfs", "-q"],
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q"],
}


def run(*words: str | os.PathLike[str]) -> None:
    """Run a command; it must succeed."""
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """Mount a file system that is in a file."""
    folder.mkdir(exist_ok=True)
    run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        run("umount", folder)


def write(engine: SqliteEngine, commits: int = 20) -> None:
    """Commit some changes."""
    for _ in range(commits):
        transaction = engine.begin()
        number = transaction.append(os.urandom(16), b"entry")
        transaction.put(b"%d" % number, os.urandom(2000))
        transaction.commit()


def close_once(path: Path) -> int:
    """Write and close: a clean stop, or the close of an idle database."""
    engine = SqliteEngine.create(path)
    write(engine)
    engine.close()
    return 20


def close_twice(path: Path) -> int:
    """Do so twice, without a pause."""
    close_once(path)
    engine = SqliteEngine.open(path)
    write(engine, 1)
    engine.close()
    return 21


def close_after_compacting(path: Path) -> int:
    """Compact before the close."""
    engine = SqliteEngine.create(path)
    write(engine)
    engine.compact()
    engine.close()
    return 20


def stay_open(path: Path) -> int:
    """Leave it open: only acknowledged commits must be there."""
    engine = SqliteEngine.create(path)
    write(engine)
    kept.append(engine)
    return 20


kept: list[SqliteEngine] = []
ENDS: Final = (close_once, close_twice, close_after_compacting, stay_open)


def cut(system: str, end: Callable[[Path], int], folder: Path) -> str:
    """Do one round; return how the database was found."""
    image, copy = folder / "image", folder / "copy"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run(*MAKE[system], image)
    with mounted(image, folder / "mounted") as place:
        os.sync()
        expected = end(place / "demo" / "default.shelf")
        run("cp", "--sparse=always", image, copy)
        while kept:
            kept.pop().close()
    with mounted(copy, folder / "mounted") as place:
        shelf = place / "demo" / "default.shelf"
        had_log = shelf.with_name(f"{shelf.name}-wal").exists()
        try:
            engine = SqliteEngine.open(shelf)
        except CannotOpenStore as error:
            print(f"  {error}")
            return "refused"
        found = engine.read(lambda view: view.sequence())
        is_clean = engine.was_closed_cleanly
        engine.close()
    if found != expected:
        return "lost"
    if end is not stay_open and not is_clean:
        return "not clean"
    return "with its log" if had_log else "as it was closed"


def main() -> None:
    """Print how often a database was found how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--systems", default="btrfs,ext4,xfs")
    chosen = parser.parse_args()
    for system in chosen.systems.split(","):
        if shutil.which(MAKE[system][0]) is None:
            print(f"{system}: there is no {MAKE[system][0]}")
            continue
        for end in ENDS:
            found: Counter[str] = Counter()
            for _ in range(chosen.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    found[cut(system, end, Path(folder))] += 1
            counts = ", ".join(f"{count} {how}" for how, count in sorted(found.items()))
            print(f"{system} {end.__name__}: {counts}", flush=True)


if __name__ == "__main__":
    main()
