"""The process that keeps an archive small: `python -m treedbd.archive.upkeep_process`.

It is of low priority. It merges segments and removes what is older than the retention. It reads its
order as JSON from standard input and prints its report as JSON:

    {"to": "…", "key_file": null, "endpoint": null, "region": null,
     "archive": "…", "writer": "…", "time": 1796000000000, "keep_s": 604800, "keep_bases": 7}

    {"merged": 1, "removed": 70, "databases": ["app/default"]}
    {"problem": "…"}

The databases are those in the archive that were not deleted there.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from typing import Any, Final, NoReturn

import orjson

from treedbd.archive.index import Archive
from treedbd.archive.merge import merge
from treedbd.archive.ownership import open_ordered
from treedbd.archive.places import PlaceFailed
from treedbd.archive.prune import prune
from treedbd.archive.sealing import Damaged, WrongKey, read_key
from treedbd.archive.segments import Deleted

_LOW_PRIORITY: Final = 10
"""How much nicer the process is than the daemon."""


def keep_up(order: dict[str, Any]) -> dict[str, Any]:
    """Merge and remove; return the report."""
    try:
        key = None if order.get("key_file") is None else read_key(pathlib.Path(order["key_file"]))
        place = open_ordered(order)
        archive = Archive(place, key)
        merged = merge(archive, order["time"])
        pruned = prune(archive, order["keep_s"], order["keep_bases"], order["time"])
        databases = not_deleted(archive)
    except (PlaceFailed, WrongKey, Damaged, ValueError) as error:
        return {"problem": str(error)}
    except OSError as error:
        return {"problem": f"{error.filename} cannot be read ({error.strerror})."}
    removed = len(pruned.bases) + len(pruned.segments)
    return {"merged": len(merged), "removed": removed, "databases": databases}


def not_deleted(archive: Archive) -> list[str]:
    """Return the databases whose last record in an archive is not that they were deleted."""
    found = set(archive.databases())
    for header in archive.headers():
        # The events of a segment may be before or after its entries: it counts as written.
        found -= {each.db for each in header.events if isinstance(each, Deleted)}
        found |= header.databases.keys()
    return sorted(found)


def main() -> None:
    """Read the order, do it, print the report."""
    os.nice(_LOW_PRIORITY)
    signal.signal(signal.SIGTERM, _end)
    report = keep_up(orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")


def _end(*_: object) -> NoReturn:
    raise SystemExit(1)


if __name__ == "__main__":
    main()
