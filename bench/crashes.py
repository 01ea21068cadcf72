"""Kill a daemon, or a command, in the middle of large work, again and again; nothing may be lost.

    .venv/bin/python bench/crashes.py [--rounds N] [--records N] [--seed N] [--only PATTERN]

Each round ends its work by SIGKILL after a random time, at most as long as the work takes
undisturbed; meanwhile a client writes small values. Then the files are checked by `treedb check`,
and the daemon is started again: every acknowledged write must be there, a large write whole or
absent, an index be built to its end, an import go on, and queries must equal an independent
selection. The first failure ends the run, with status 1. Printed is how many rounds of each kind
were killed in the middle, and how many were whole.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from servers import run_treedb
from sessions import OWNER, Records, Server, Session, encode, load

OPEN: Final = {".read": True, ".write": True}
LOST = (OSError, EOFError, RuntimeError)
"""How requests end whose server is killed."""


class Failed(Exception):
    """Something was lost or is half; `str()` says what."""


class Crashes:
    """A server that is killed again and again, and what it must have."""

    def __init__(self, server: Server, records: Records, seed: int) -> None:
        """Write the records, which all rounds begin with."""
        self.server = server
        self.records = records
        self.random = random.Random(seed)
        self.full = json.loads(records.document())
        self.acknowledged = 0
        self.calls = itertools.count()
        self._took: dict[str, float] = {}
        self._number = 0
        session = Session(server.url, "big")
        session.put_rules(OPEN)
        load(session, "records", records)

    def run(self, name: str, work: Callable[[], object]) -> bool:
        """Begin work in a thread and kill the server in its middle; return whether it had ended.

        The first time the work is left to its end, which says how long it takes.
        """
        ended = threading.Event()
        begin = time.monotonic()

        def do() -> None:
            with contextlib.suppress(*LOST):
                work()
                ended.set()
                took = time.monotonic() - begin
                self._took[name] = min(took, self._took.get(name, took))

        threads = [threading.Thread(target=do), threading.Thread(target=self._write_small)]
        for thread in threads:
            thread.start()
        if name in self._took:
            ended.wait(self.random.uniform(0, self._took[name]))
        else:
            threads[0].join()
        is_whole = ended.is_set()
        self.server.kill()
        for thread in threads:
            thread.join()
        self.check_files()
        self.server.start()
        self._check_small()
        return is_whole

    def check_files(self) -> None:
        """Check the files as they are on disk."""
        folder = self.server.folder
        words = ["check", "--data", str(folder / "data"), "--config", str(folder / "treedb.toml")]
        done = command(*words)
        if done.returncode:
            raise Failed(f"treedb check: {done.stdout}{done.stderr}")

    def read(self, path: str, query: str = "") -> Any:
        """Return what is at a path now."""
        session = Session(self.server.url, "big")
        status, answer, _ = session.ask("GET", path, f"timeout=15min&{query}")
        session.close()
        if status != 200:
            raise Failed(f"{path} cannot be read: {status} {answer[:200]!r}.")
        return json.loads(answer)

    def ask(self, method: str, path: str, body: bytes | None = None) -> None:
        """Do one large write; raise RuntimeError if it is refused."""
        session = Session(self.server.url, "big")
        status, answer, _ = session.ask(method, path, "timeout=15min&print=silent", body)
        session.close()
        if status != 204:
            raise RuntimeError(f"{status} {answer[:200]!r}")

    def require(self, path: str, *allowed: Any) -> None:
        """Raise `Failed` unless what is at a path is one of the values that are allowed."""
        if self.read(path) not in allowed:
            raise Failed(f"{path} is none of the {len(allowed)} values that it may have.")

    def _write_small(self) -> None:
        with contextlib.suppress(*LOST):
            session = Session(self.server.url, "big")
            while True:
                number = self._number + 1
                status, answer, _ = session.ask("PUT", "small", "", str(number).encode())
                if status != 200:
                    raise RuntimeError(f"{status} {answer[:200]!r}")
                self.acknowledged = self._number = number
                time.sleep(0.001)

    def _check_small(self) -> None:
        found = self.read("small") or 0
        if not self.acknowledged <= found <= self.acknowledged + 1:
            raise Failed(f"{self.acknowledged} was acknowledged, {found} is there.")
        self._number = self.acknowledged = found


def put(crashes: Crashes) -> bool:
    """Replace all records by one body."""
    crashes.ask("PUT", "written", b'{"old":true}')
    body = crashes.records.document()
    is_whole = crashes.run("put", lambda: crashes.ask("PUT", "written", body))
    crashes.require("written", crashes.full, *([] if is_whole else [{"old": True}]))
    return is_whole


def patch(crashes: Crashes) -> bool:
    """Change one leaf of every record by one body."""
    crashes.ask("PUT", "written", crashes.records.document())
    changed = {key: value | {"name": "changed"} for key, value in crashes.full.items()}
    body = encode({f"{key}/name": "changed" for key in crashes.full})
    is_whole = crashes.run("patch", lambda: crashes.ask("PATCH", "written", body))
    crashes.require("written", changed, *([] if is_whole else [crashes.full]))
    return is_whole


def remove(crashes: Crashes) -> bool:
    """Remove all records."""
    crashes.ask("PUT", "written", crashes.records.document())
    is_whole = crashes.run("remove", lambda: crashes.ask("DELETE", "written"))
    crashes.require("written", None, *([] if is_whole else [crashes.full]))
    return is_whole


def build(crashes: Crashes) -> bool:
    """Build an index while records are written, and query by it before and after it is built."""
    child = crashes.random.choice(["age", "city", "group"])
    is_whole = crashes.run("build", lambda: declare(crashes, child))
    check_queries(crashes, child)
    if not is_whole:
        declare(crashes, child)  # it may have been killed before it had them
    check_queries(crashes, child)
    return is_whole


def declare(crashes: Crashes, child: str) -> None:
    """Declare an index, and wait until it is built.

    Another one is declared beside it, by a child that no call before has named. Indexes are built
    one after the other, so its line in the log, which surely comes, is the last. The line of the
    first may be missing: a daemon may be killed between the commit and the line, and an index
    that is declared again in time stays as it is.
    """
    begin = len(crashes.server.log)
    last = f"zone{next(crashes.calls)}"
    session = Session(crashes.server.url, "big")
    session.put_rules(OPEN)
    session.put_rules(OPEN | {"records": {".indexOn": [child, last]}})
    session.close()
    crashes.read("small")  # the next use of a database begins to build
    built = f"The index {last} of /records in the database big--demo is built"
    crashes.server.await_line(built, begin, 120)


def check_queries(crashes: Crashes, child: str) -> None:
    """Compare queries by a child with a selection from all records."""
    records = crashes.read("records")
    for _ in range(5):
        low, high = sorted(crashes.random.choices([each[child] for each in records.values()], k=2))
        expected = {key: each for key, each in records.items() if low <= each[child] <= high}
        bounds = f"startAt={json.dumps(low)}&endAt={json.dumps(high)}"
        if crashes.read("records", f'orderBy="{child}"&{bounds}') != expected:
            raise Failed(f"The query by {child} from {low} to {high} is wrong.")


def import_file(crashes: Crashes) -> bool:
    """Import a file; after the crash of the daemon the same command brings it to its end."""
    file = crashes.server.folder / "records.json"
    file.write_bytes(crashes.records.document())
    crashes.ask("PUT", "imported", b"null")

    def run(*options: str) -> None:
        url = f"{crashes.server.url}/imported.json?ns=big--demo"
        done = command("import", str(file), url, "--quiet", *options)
        if done.returncode:
            raise RuntimeError(done.stderr)

    is_whole = crashes.run("import", lambda: run("--retry-for", "0"))
    if not is_whole:
        with contextlib.suppress(RuntimeError):  # it was at its end when the daemon was killed
            run()
    crashes.require("imported", crashes.full)
    return is_whole


KINDS: Final[dict[str, Callable[[Crashes], bool]]] = {
    "PUT": put,
    "PATCH": patch,
    "DELETE": remove,
    "index": build,
    "import": import_file,
}


def main() -> None:
    """Run all rounds; exit with status 1 at the first failure."""
    options = parse()
    kinds = {name: kind for name, kind in KINDS.items() if re.search(options.only, name)}
    counts: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        crashes = Crashes(server, Records(options.records), options.seed)
        for _ in range(options.rounds + 1):
            for name, kind in kinds.items():
                try:
                    counts[name, kind(crashes)] += 1
                except Failed as failure:
                    sys.exit(f"{name}, after {counts.total()} rounds: {failure}")
    for name in kinds:
        killed, whole = counts[name, False], counts[name, True]
        print(f"{name:8}{killed:6,} killed in the middle, {whole:,} whole; nothing lost")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="after one that is not disturbed")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="PATTERN", help="kinds by their names")
    return parser.parse_args()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a treedb command to its end."""
    return run_treedb(*words, token=OWNER["Authorization"].partition(" ")[2])


if __name__ == "__main__":
    main()
