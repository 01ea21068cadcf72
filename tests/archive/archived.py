"""A daemon whose databases are archived, and what the archive says of them."""

from __future__ import annotations

import math
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tests.daemon import Daemon
from tests.ops import OPS_LISTEN, Scrape, fetch
from treedbd.archive.index import Archive, Stretch
from treedbd.archive.places import open_place
from treedbd.archive.sealing import Key
from treedbd.store.shelf import Shelf, open_shelf

OWNER: Final = {"Authorization": "Bearer owner"}
CONFIG: Final = f"""
default_project = "app"
emulator = true
{OPS_LISTEN}
[projects.app]
databases = "*"
[projects.other]
databases = "*"
"""
FOLDER: Final = "archive"


def make_daemon(
    folder: pathlib.Path,
    archive: str = "",
    more: str = "",
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Daemon:
    """Return a daemon with an archive in `<folder>/archive`, or where `archive` says."""
    if not archive.startswith("to ="):
        (folder / FOLDER).mkdir(exist_ok=True)
        archive = f'to = "{FOLDER}"\n{archive}'
    config = f"{CONFIG}[archive]\n{archive}\n{more}"
    return Daemon(folder, config=config, arguments=arguments, environment=environment)


def put(daemon: Daemon, target: str, value: object, method: str = "PUT") -> None:
    """Write a value as an admin."""
    done = daemon.request(method, target, orjson.dumps(value), OWNER)
    assert done.status == 200, done


def archive_in(folder: pathlib.Path, key: Key | None = None) -> Archive:
    """Return what the archive of a daemon holds."""
    return Archive(open_place(str(folder / FOLDER)), key)


def read_back(archive: Archive, db: str) -> tuple[Stretch, Mapping[str, Any]]:
    """Return the last stretch of a database, and the children of its root at the end of it.

    All writes are of one child. The numbers of the entries have no hole.
    """
    stretch = archive.spans(db)[-1]
    base = stretch.base_for(stretch.through)
    children: dict[str, Any] = {}
    after = 0
    if base is not None:
        after = base.sequence
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "base.shelf"
            archive.load(base, target)
            with open_shelf(target) as shelf:
                children = dict(_children(shelf))
    for entry in archive.entries(stretch, after):
        after += 1
        assert entry.sequence == after
        json = orjson.loads(entry.content)
        children[json["path"][0]] = json["sent"]
    assert after == stretch.through
    assert not archive.faults
    return stretch, children


def _children(shelf: Shelf) -> dict[str, Any]:
    found = shelf.export()
    return found if isinstance(found, dict) else {}


def scrape(daemon: Daemon) -> Scrape:
    """Return the metrics of a daemon."""
    return Scrape(_fetch(daemon, "/.metrics")[1])


def health(daemon: Daemon) -> tuple[int, list[str]]:
    """Return the status of the health, and the reasons of its problems."""
    status, text = _fetch(daemon, "/.health")
    return status, [each["reason"] for each in orjson.loads(text)["problems"]]


def _fetch(daemon: Daemon, target: str) -> tuple[int, str]:
    url = re.findall(r"Metrics and health: (\S+)", daemon.log)[-1]  # each start has its port
    status, _, text = fetch(url + target)
    return status, text


def lag(daemon: Daemon) -> float:
    """Return the lag of the archive in seconds; infinity until a process is elected."""
    found = scrape(daemon).of("treedb_archive_lag_seconds")
    return next(iter(found.values()), math.inf)
