"""Files of older formats that treedb itself wrote when each was the present one, with `BODY`."""

from __future__ import annotations

import contextlib
import gzip
import pathlib
from typing import Any

from tests.store.normal_form import normal_form
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.verify import verify
from treedbd.tree.types import ROOT

BODY: Any = {
    "people": {f"p{at:03}": {"name": f"Person {at}", "tags": [at, at + 1]} for at in range(200)},
    "list": [f"item {at}" * 10 for at in range(60)],
    "mixed": {
        **{str(at): "x" * 50 for at in range(-3, 40)},
        "01": 1,
        "a": {"b": "y" * 6000},
        "b": {"c": 1, ".priority": 2},
        'q"\\é': "z" * 90,
        ".priority": 7,
    },
    "k" * 600: {"9": 2, "09": "w" * 300},
    "deep": {
        "a": {"b": {"c": {f"x{at}": {"v": "v" * 40, ".priority": at} for at in range(150)}}},
    },
    "long": "l" * 9000,
}


def unpack_file(version: int, path: pathlib.Path) -> None:
    """Put the file of a format, 2 or newer, at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pathlib.Path(__file__).with_name(f"format_{version}.shelf.gz").read_bytes()
    path.write_bytes(gzip.decompress(content))


def ignore(_: str) -> None:
    """Receive a sentence about the progress."""


def check_content(path: pathlib.Path, entries: int) -> None:
    """Check that a file, which is converted, has `BODY` and so many entries in its change log."""
    with contextlib.closing(SqliteEngine.open(path, reserve_bytes=0, report=ignore)) as engine:
        assert engine.read(verify) == []
        assert engine.verify() == []
        assert engine.read(lambda view: Nodes(view).get(ROOT)) == normal_form(BODY)
        found = engine.read(lambda view: (view.sequence(), len(list(view.entries(0)))))
        assert found == (entries, entries)
