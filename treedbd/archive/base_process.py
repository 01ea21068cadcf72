"""The process that makes a base: `python -m treedbd.archive.base_process`, of low priority.

It reads its order as JSON from standard input and prints its report as JSON:

    {"file": "…/app/default.shelf", "db": "app/default", "time": 1796000000000, "segment": 7,
     "to": "s3://bucket/prefix", "key_file": null, "endpoint": null, "region": null,
     "archive": "…", "writer": "…"}

    {"name": "bases/app/default/…", "seq": 12, "op": "…", "rows": 5, "bytes": 300}
    {"problem": "…"}

The problem is a sentence for the log of the operator. Nothing is left of a base that fails.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
from typing import Any, Final, NoReturn

import orjson

from treedbd.archive.bases import Dump, name_base
from treedbd.archive.ownership import open_ordered
from treedbd.archive.places import NameTaken, PlaceFailed
from treedbd.archive.sealing import read_key
from treedbd.store.engine import CannotOpenStore, StoreFailed

_LOW_PRIORITY: Final = 10
"""How much nicer the process is than the daemon."""


def make_base(order: dict[str, Any]) -> dict[str, Any]:
    """Write a base; return the report."""
    try:
        key = None if order.get("key_file") is None else read_key(pathlib.Path(order["key_file"]))
        place = open_ordered(order)
        file = pathlib.Path(order["file"])
        moment = Dump(file, db=order["db"], time_ms=order["time"], segment=order["segment"])
        with contextlib.closing(moment):
            name = name_base(moment.header, key)
            size = place.put(name, moment.chunks(key), is_new=True)
    except NameTaken as error:
        return {"problem": f"There is a base {error} of the same moment."}
    except (PlaceFailed, CannotOpenStore, StoreFailed, ValueError) as error:
        return {"problem": str(error)}
    except OSError as error:
        return {"problem": f"{error.filename} cannot be read ({error.strerror})."}
    header = moment.header
    position = {"seq": header.sequence, "op": header.op_id.hex()}
    return {"name": name, **position, "rows": moment.rows, "bytes": size}


def main() -> None:
    """Read the order, write the base, print the report."""
    os.nice(_LOW_PRIORITY)
    signal.signal(signal.SIGTERM, _end)
    report = make_base(orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")


def _end(*_: object) -> NoReturn:
    raise SystemExit(1)


if __name__ == "__main__":
    main()
