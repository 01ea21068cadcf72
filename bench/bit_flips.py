"""Flip one bit of a database's file, start a daemon over it, and read everything, again and again.

    .venv/bin/python bench/bit_flips.py [--flips N] [--at-once N] [--seed N] [--records N]

A database of values of many shapes is written over HTTP and closed. Each flip changes one bit of a
copy, anywhere in its file; a daemon serves many copies at once, as databases of one project. Each
is read several ways: whole, shallow, each child and many leaves, with queries by key and by an
index, and through a rule that reads data. An answer must be the right one, or 503, or be cut off
visibly. Printed is how many flips were in what kind of page, and what their reads answered; any
other answer ends the run with status 1. Nothing is ever written.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from servers import LISTEN

from tests.daemon import Daemon

PAGE: Final = 4096
KINDS: Final = {2: "index inner", 5: "table inner", 10: "index leaf", 13: "table leaf"}
RULES: Final = {
    "rules": {
        ".read": "root.child('allowed/x').val() === true",
        ".write": True,
        "users": {".indexOn": ["age", "name"]},
        "posts": {".indexOn": "rank"},
    }
}


def make_tree(records: int, source: random.Random) -> dict[str, Any]:
    """Return a tree with values of many shapes."""
    return {
        "users": {
            f"u{number:05d}": {"name": "n" * source.randrange(5, 40), "age": number % 97}
            for number in range(records)
        },
        "posts": {
            f"-P{source.randrange(10**9):09d}": {"t": "t" * source.randrange(3000), "rank": number}
            for number in range(records // 4)
        },
        "numbers": {str(number * 7): number for number in range(records)},
        "long": {
            "k" * source.randrange(100, 300) + str(number): "v" * source.randrange(10, 900)
            for number in range(records // 5)
        },
        "blob": {"x": "b" * 60000},
        "deep": {"a": {"b": {f"x{n}": {"y": n, "z": "z" * 900} for n in range(records // 6)}}},
        "allowed": {"x": True},
    }


class Reader:
    """Requests to a daemon over one connection, or a new one after an answer that was cut off."""

    def __init__(self, daemon: Daemon) -> None:
        """Send to `daemon`."""
        self._connection = daemon.connect()

    def request(self, method: str, url: str, body: object = None) -> tuple[int, bytes]:
        """Return the status and the body of a response, 0 and nothing if it was cut off."""
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Authorization": "Bearer owner"}
        self._connection.request(method, url, content, headers)
        try:
            response = self._connection.getresponse()
            return response.status, response.read()
        except (http.client.HTTPException, OSError):
            self._connection.close()
            return 0, b""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Reader]:
    """Run a daemon over `<folder>/data`; stop it cleanly at the end."""
    with Daemon(folder, listen=[LISTEN]) as daemon:
        yield Reader(daemon)
        daemon.stop()


def reads(tree: dict[str, Any], source: random.Random) -> list[str]:
    """Return the paths and queries of all reads."""
    found = ["/.json", "/.json?shallow=true"]
    for name, value in tree.items():
        found += [f"/{name}.json", f"/{name}.json?shallow=true"]
        for key in source.sample(sorted(value), min(150, len(value))):
            found.append(f"/{name}/{quote(key)}.json")
        low = quote(json.dumps(source.choice(sorted(value))))
        found.append(f'/{name}.json?orderBy="$key"&startAt={low}&limitToFirst=40')
        found.append(f'/{name}.json?orderBy="$key"&endAt={low}&limitToLast=40')
    found += [f'/users.json?orderBy="age"&equalTo={age}' for age in range(0, 97, 7)]
    found += [
        '/posts.json?orderBy="rank"&limitToLast=50',
        '/users.json?orderBy="name"&limitToFirst=99',
    ]
    found += [f"/deep/a/b/x{n}.json" for n in range(0, len(tree["deep"]["a"]["b"]), 5)]
    found += ["/users/absent.json", "/long/absent.json", "/zzz.json"]
    return found


def _with_name(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}ns={name}"


def flip(shelf: Path, bit: int) -> str:
    """Flip a bit of a file; return what kind of page it is in."""
    content = bytearray(shelf.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    shelf.write_bytes(content)
    at = bit // 8 // PAGE * PAGE
    return "header" if bit // 8 < 100 else KINDS.get(content[at + 100 * (at == 0)], "other")


class Trial:
    """Flips in copies of one database."""

    def __init__(self, folder: Path, records: int, seed: int) -> None:
        """Write the database, and keep the right answers."""
        self._folder = folder
        self._random = random.Random(seed)
        tree = make_tree(records, self._random)
        self._reads = reads(tree, self._random)
        first = folder / "first"
        first.mkdir()
        with serve(first) as reader:
            for url, body in (("/.settings/rules.json", RULES), ("/.json", tree)):
                status, answer = reader.request("PUT", _with_name(url, "demo"), body)
                assert status == 200, answer
            for key in list(tree["users"])[::3]:  # pages become free, and rows are out of order
                reader.request("DELETE", _with_name(f"/numbers/{int(key[1:]) * 7}.json", "demo"))
        with serve(first) as reader:
            self._right = [reader.request("GET", _with_name(url, "demo")) for url in self._reads]
        self._source = next(first.glob("data/*/default.shelf"))
        self.answers: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    def run(self, number: int, count: int) -> None:
        """Try so many flips with one daemon."""
        folder = self._folder / f"run{number}"
        project = folder / "data" / self._source.parent.name
        project.mkdir(parents=True)
        rules = self._source.with_name("rules.json")
        if rules.exists():
            shutil.copy(rules, project)
        size, flips = self._source.stat().st_size, {}
        for each in range(count):
            shelf = project / f"f{each}.shelf"
            shutil.copy(self._source, shelf)
            shutil.copy(f"{self._source}-mark", f"{shelf}-mark")
            bit = self._random.randrange(size * 8)
            if each % 10 == 0:
                bit = self._random.randrange(100 * 8)  # the header, which is small
            flips[f"f{each}"] = bit, flip(shelf, bit)
        with serve(folder) as reader:
            for name, (bit, kind) in flips.items():
                self._read_all(reader, name, bit, kind)
        shutil.rmtree(folder)

    def _read_all(self, reader: Reader, name: str, bit: int, kind: str) -> None:
        seen = set()
        for url, right in zip(self._reads, self._right, strict=True):
            full = _with_name(url, f"{name}--demo")
            status, body = reader.request("GET", full)
            what = {0: "cut off", 503: "503"}.get(status, "WRONG")
            if (status, body) == right:
                what = "right"
            self.answers[what] += 1
            seen.add(what)
            if what == "WRONG":
                self.wrong.append(
                    f"bit {bit} ({kind}): {url} {status} {body[:80]!r} not {right[1][:80]!r}"
                )
        worst = next(each for each in ("WRONG", "503", "cut off", "right") if each in seen)
        self.kinds[kind, worst] += 1


def main() -> int:
    """Run it; return the status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--records", type=int, default=3000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), options.records, options.seed)
        for number, done in enumerate(range(0, options.flips, options.at_once)):
            trial.run(number, min(options.at_once, options.flips - done))
    for (kind, worst), count in sorted(trial.kinds.items()):
        print(f"{kind}: {worst} {count}")
    print("answers:", dict(trial.answers))
    for each in trial.wrong[:20]:
        print(each)
    return 1 if trial.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
