"""Back up and restore a daemon under writes, again and again; each backup must be one moment.

    .venv/bin/python bench/backups.py [--rounds N] [--connections N]

Each write adds one to two places of the tree, so in a backup both must be equal, and equal to the
number of the last write that its manifest names; and everything that was acknowledged before the
backup began must be in it. The first failure ends the run, with status 1. Printed are the writes a
second, and seconds of backups.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from servers import run_treedb
from sessions import OWNER, Server, Session

from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine

OPEN = {".read": True, ".write": True}
ADD = b'{"one":{".sv":{"increment":1}},"deep/two":{".sv":{"increment":1}}}'


def main() -> None:
    """Do all rounds."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        session = Session(server.url, "big")
        session.put_rules(OPEN)
        session.ask("PUT", "", "", b'{"one":0,"deep":{"two":0}}')
        session.close()
        begin = time.monotonic()
        with writing(server.url, options.connections) as acknowledged:
            took = [back_up(server, number, acknowledged.value) for number in range(options.rounds)]
            rate = acknowledged.value / (time.monotonic() - begin)
    median = statistics.median(took)
    print(f"{options.rounds} backups, each of one moment: median {median:.2f} s, ", end="")
    print(f"{rate:,.0f} writes/s meanwhile")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--connections", type=int, default=32)
    return parser.parse_args()


@contextlib.contextmanager
def writing(url: str, connections: int) -> Iterator[Any]:
    """Write from a process of its own; yield the number of writes that were acknowledged."""
    acknowledged = multiprocessing.Value("q", 0)
    process = multiprocessing.Process(target=write, args=(url, connections, acknowledged))
    process.start()
    try:
        yield acknowledged
        if not process.is_alive():
            raise RuntimeError("The writers have failed.")
    finally:
        process.kill()
        process.join()


def write(url: str, connections: int, acknowledged: Any) -> None:
    """Write until the process is killed."""
    asyncio.run(_write_all(url, connections, acknowledged))


async def _write_all(url: str, connections: int, acknowledged: Any) -> None:
    await asyncio.gather(*[_write_one(url, acknowledged) for _ in range(connections)])


async def _write_one(url: str, acknowledged: Any) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"PATCH /.json?ns=big--demo&print=silent HTTP/1.1\r\nHost: {address.netloc}\r\n"
    head += f"Authorization: {OWNER['Authorization']}\r\nContent-Length: {len(ADD)}\r\n\r\n"
    request = head.encode() + ADD
    while True:
        writer.write(request)
        if b" 204 " not in await reader.readuntil(b"\r\n\r\n"):
            raise RuntimeError("A write was refused.")
        acknowledged.value += 1


def back_up(server: Server, number: int, acknowledged: int) -> float:
    """Make a backup, restore it, and check what it holds; return the seconds of the backup."""
    backup, restored = server.folder / "backup", server.folder / f"restored{number}"
    settings = ["--config", str(server.folder / "treedb.toml")]
    begin = time.monotonic()
    run("backup", *settings, "--data", str(server.folder / "data"), "--keep", "2", str(backup))
    took = time.monotonic() - begin
    run("restore", *settings, "--data", str(restored), str(backup))
    manifest = json.loads((backup / f"{number + 1:04}" / "manifest.json").read_text())
    engine = SqliteEngine.open(restored / "demo" / "big.shelf")
    try:
        tree, sequence = engine.read(lambda view: (Nodes(view).get(()), view.sequence()))
    finally:
        engine.close()
    count: Any = tree["one"] if isinstance(tree, dict) else None
    saved = [each["sequence"] for each in manifest["files"] if each["path"] == "demo/big.shelf"]
    if tree != {"one": count, "deep": {"two": count}} or saved != [sequence]:
        raise SystemExit(f"Backup {number + 1} is not one moment: {tree}, {saved}, {sequence}.")
    if count != sequence - 1 or count < acknowledged:
        raise SystemExit(f"Backup {number + 1} lacks writes: {count}, {sequence}, {acknowledged}.")
    return took


def run(*words: str) -> None:
    """Run a command."""
    done = run_treedb(*words)
    if done.returncode:
        raise SystemExit(f"treedb {words[0]}: {done.stderr}")


if __name__ == "__main__":
    main()
