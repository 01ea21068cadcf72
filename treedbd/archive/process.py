"""The processes of an archive, of low priority: `python -m treedbd.archive.process base|upkeep`.

Each reads its order as JSON from standard input and prints its report as JSON. An order names the
archive, and the ids of a `Note` (`ownership`):

    {"to": "s3://bucket/prefix", "key_file": null, "endpoint": "", "region": "",
     "archive": "…", "writer": "…", …}

`base` makes a base of a database; nothing is left of one that fails:

    {…, "file": "…/app/default.shelf", "db": "app/default", "time": 1796000000000, "segment": 7}
    {"name": "bases/app/default/…", "seq": 12, "op": "…", "rows": 5, "bytes": 300}

`upkeep` merges segments and removes what is older than the retention. The databases that it reports
are those in the archive that were not deleted there:

    {…, "time": 1796000000000, "keep_s": 604800, "keep_bases": 7}
    {"merged": 1, "removed": 70, "databases": ["app/default"]}

What fails is reported as a sentence for the log of the operator: `{"problem": "…"}`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import orjson

from treedbd.archive.bases import Dump, name_base
from treedbd.archive.index import Archive
from treedbd.archive.merge import merge
from treedbd.archive.ownership import open_ordered
from treedbd.archive.places import NameTaken, Place, PlaceFailed
from treedbd.archive.prune import prune
from treedbd.archive.sealing import Damaged, Key, WrongKey, read_key
from treedbd.archive.segments import Deleted
from treedbd.store.engine import CannotOpenStore, StoreFailed

_LOW_PRIORITY: Final = 10
"""How much nicer a process is than the daemon."""

_Work: TypeAlias = Callable[[Place, Key | None, dict[str, Any]], dict[str, Any]]


def make_base(place: Place, key: Key | None, order: dict[str, Any]) -> dict[str, Any]:
    """Write a base; return the report."""
    file = pathlib.Path(order["file"])
    moment = Dump(file, db=order["db"], time_ms=order["time"], segment=order["segment"])
    with contextlib.closing(moment):
        name = name_base(moment.header, key)
        try:
            size = place.put(name, moment.chunks(key), is_new=True)
        except NameTaken as error:
            return {"problem": f"There is a base {error} of the same moment."}
    header = moment.header
    position = {"seq": header.sequence, "op": header.op_id.hex()}
    return {"name": name, **position, "rows": moment.rows, "bytes": size}


def keep_up(place: Place, key: Key | None, order: dict[str, Any]) -> dict[str, Any]:
    """Merge and remove; return the report."""
    archive = Archive(place, key)
    merged = merge(archive, order["time"])
    pruned = prune(archive, order["keep_s"], order["keep_bases"], order["time"])
    removed = len(pruned.bases) + len(pruned.segments)
    return {"merged": len(merged), "removed": removed, "databases": not_deleted(archive)}


def not_deleted(archive: Archive) -> list[str]:
    """Return the databases whose last record in an archive is not that they were deleted."""
    found = set(archive.databases())
    for header in archive.headers():
        # The events of a segment may be before or after its entries: it counts as written.
        found -= {each.db for each in header.events if isinstance(each, Deleted)}
        found |= header.databases.keys()
    return sorted(found)


def _report(work: _Work, order: dict[str, Any]) -> dict[str, Any]:
    try:
        key = None if order.get("key_file") is None else read_key(pathlib.Path(order["key_file"]))
        return work(open_ordered(order), key, order)
    except (
        *(PlaceFailed, WrongKey, Damaged),
        *(CannotOpenStore, StoreFailed, ValueError),
    ) as error:
        return {"problem": str(error)}
    except OSError as error:
        return {"problem": f"{error.filename} cannot be read ({error.strerror})."}


def main() -> None:
    """Read the order, do it, print the report."""
    os.nice(_LOW_PRIORITY)
    signal.signal(signal.SIGTERM, _end)
    works: dict[str, _Work] = {"base": make_base, "upkeep": keep_up}
    report = _report(works[sys.argv[1]], orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")


def _end(*_: object) -> NoReturn:
    raise SystemExit(1)


if __name__ == "__main__":
    main()
