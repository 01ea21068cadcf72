"""A file of format 4 that treedb itself wrote when that was the present one, and what is in it."""

from __future__ import annotations

import gzip
import pathlib
from typing import Any

FIXTURE = pathlib.Path(__file__).with_name("format_4.shelf.gz")
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


def unpack_fixture(path: pathlib.Path) -> None:
    """Put the file that treedb has written at `path`."""
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress(FIXTURE.read_bytes()))
