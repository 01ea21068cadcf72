"""How fast `treedb import` and `export` are, online and offline, and how much memory they take.

    python bench/loading.py [--records N] [--firebase-tools PATH] [--rounds N]

The records have about 250 bytes of JSON. Beside them the same rows are loaded into a plain SQLite
table of keys and texts, by `.import` of the `sqlite3` command where it is installed, else by
`executemany`. With `--firebase-tools` the daemon is loaded by that command too. Printed are medians
of interleaved rounds, in MB of JSON a second, as ratios to the plain table, and the peak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from servers import LISTEN, TWISTD, first_line, start

MEASURED = """
import resource, sys
from treedbd.cli.main import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"peak {peak}", file=sys.stderr)
sys.exit(status)
"""


class Bench:
    """The files and the daemon of all rounds."""

    def __init__(self, folder: pathlib.Path, records: int) -> None:
        self.folder = folder
        self.document = folder / "records.json"
        self.lines = folder / "records.ndjson"
        self.rows = folder / "records.csv"
        self.size = write_records(self, records)
        self.peaks: dict[str, int] = {}
        self.numbers = iter(range(10**9))
        self.url = ""

    def treedb(self, name: str, *words: str | pathlib.Path) -> None:
        """Run a command in a process of its own and note its peak memory."""
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        peak = int(done.stderr.rpartition("peak ")[2])
        self.peaks[name] = max(self.peaks.get(name, 0), peak)

    def new(self) -> str:
        """Return the name of a project that nothing has used."""
        return f"p{next(self.numbers)}"


def write_records(bench: Bench, records: int) -> int:
    """Write the same records as a document, as lines and as CSV; return the document's bytes."""
    with (
        bench.document.open("w") as document,
        bench.lines.open("w") as lines,
        bench.rows.open("w") as rows,
    ):
        document.write('{"users":{')
        for number in range(records):
            key = f"-Nabc{number:08}"
            text = json.dumps(
                {
                    "age": number % 90,
                    "bio": f"{number:06x} " * 24,
                    "email": f"u{number}@example.com",
                    "name": f"User {number}",
                    "tags": {"a": True, "b": number % 3 == 0},
                },
                separators=(",", ":"),
            )
            document.write(f'{"," if number else ""}"{key}":{text}')
            lines.write(f'{{"key":"{key}","value":{text}}}\n')
            rows.write(f'{key},"{text.replace(chr(34), chr(34) * 2)}"\n')
        document.write("}}")
    return bench.document.stat().st_size


@contextlib.contextmanager
def daemon(bench: Bench) -> Iterator[None]:
    """Run a daemon, whose URL is noted."""
    words = ("-n", "--pidfile=", "treedb", "--listen", LISTEN, "--data", f"{bench.folder}/served")
    process = start(TWISTD, *words, core=None)
    try:
        bench.url = first_line(process, ".*treedb ready .*").split()[-1]
        yield
    finally:
        process.terminate()
        process.wait()


def load_plain(bench: Bench) -> None:
    """Load the rows into a table of a new file, durably."""
    file = bench.folder / "plain.sqlite"
    file.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE records (key TEXT PRIMARY KEY, value TEXT)")
        if shutil.which("sqlite3") is None:
            with bench.lines.open() as lines, connection:
                parsed = (json.loads(line) for line in lines)
                rows = ((each["key"], json.dumps(each["value"])) for each in parsed)
                connection.executemany("INSERT INTO records VALUES (?, ?)", rows)
    if shutil.which("sqlite3") is not None:
        commands = f".import --csv {bench.rows} records\n"
        subprocess.run(["sqlite3", file], input=commands, text=True, check=True)


def cases(bench: Bench, firebase_tools: str | None) -> dict[str, Callable[[], None]]:
    """Return what is measured, by name."""
    out = bench.folder / "out.json"

    def offline() -> pathlib.Path:
        shutil.rmtree(bench.folder / "offline", ignore_errors=True)
        return bench.folder / "offline"

    def run(name: str, *words: str | pathlib.Path) -> Callable[[], None]:
        return lambda: bench.treedb(name, *words, "--quiet")

    def imports(name: str, file: pathlib.Path, path: str) -> Callable[[], None]:
        return lambda: bench.treedb(
            name, "import", file, f"{bench.url}{path}?ns={bench.new()}", "--quiet"
        )

    found: dict[str, Callable[[], None]] = {
        "sqlite3 .import": lambda: load_plain(bench),
        "import --data": lambda: bench.treedb(
            "import --data", "import", bench.document, "http://localhost/", "--data", offline(),
            "--quiet",
        ),
        "export --data": run(
            "export --data", "export", "http://localhost/", out, "--data", bench.folder / "offline"
        ),
        "import": imports("import", bench.document, "/"),
        "import, ndjson": imports("import, ndjson", bench.lines, "/users"),
        "export": lambda: bench.treedb("export", "export", f"{bench.url}/?ns=p0", out, "--quiet"),
        "export, ndjson": lambda: bench.treedb(
            "export, ndjson", "export", f"{bench.url}/users?ns=p0", bench.folder / "out.ndjson",
            "--quiet",
        ),
    }  # fmt: skip
    if firebase_tools is not None:
        found["firebase-tools"] = lambda: upload(bench, firebase_tools)
    return found


def upload(bench: Bench, firebase_tools: str) -> None:
    """Import the document by the command for the hosted service; `docs/clients.md` explains how."""
    store = bench.folder / "configstore"
    store.mkdir(exist_ok=True)
    tokens = {"access_token": "owner", "refresh_token": "none", "expires_at": 4102444800000}
    login = {"user": {"email": "me"}, "tokens": {**tokens, "scopes": []}}
    (store / "firebase-tools.json").write_text(json.dumps(login))
    name = "projects/demo/locations/us-central1/instances/demo"
    instance = {"name": name, "databaseUrl": bench.url}
    resources = {"resources": {"realtimeDatabaseInstance": "demo"}}
    subprocess.run(
        [firebase_tools, "database:import", f"/{bench.new()}", str(bench.document), "--force",
         "--project", "demo"],
        env={
            **os.environ,
            "XDG_CONFIG_HOME": str(bench.folder),
            "CI": "1",
            "FIREBASE_REALTIME_URL": bench.url,
            "FIREBASE_RESOURCEMANAGER_URL": bench.url,
            "FIREBASE_API_URL": as_data(resources),
            "FIREBASE_RTDB_MANAGEMENT_URL": as_data(instance),
        },
        cwd=bench.folder,
        check=True,
        stdout=sys.stderr,
    )  # fmt: skip


def as_data(json_value: object) -> str:
    """Return a URL whose content is JSON."""
    return f"data:application/json,{json.dumps(json_value, separators=(',', ':'))}#"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--firebase-tools", metavar="PATH")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(pathlib.Path(name), arguments.records)
        seconds: dict[str, list[float]] = {}
        with daemon(bench):
            for _ in range(arguments.rounds):
                for case, work in cases(bench, arguments.firebase_tools).items():
                    begin = time.perf_counter()
                    work()
                    seconds.setdefault(case, []).append(time.perf_counter() - begin)
        report(bench, seconds)


def report(bench: Bench, seconds: dict[str, list[float]]) -> None:
    """Print the table."""
    plain = statistics.median(seconds["sqlite3 .import"])
    print(f"{bench.size / 1e6:.1f} MB of JSON")
    print(f"{'':18}{'MB/s':>8}{'of plain':>10}{'peak MiB':>10}")
    for case, times in seconds.items():
        median = statistics.median(times)
        peak = f"{bench.peaks[case] / 1024:.0f}" if case in bench.peaks else ""
        print(f"{case:18}{bench.size / median / 1e6:8.1f}{plain / median:10.2f}{peak:>10}")


if __name__ == "__main__":
    main()
