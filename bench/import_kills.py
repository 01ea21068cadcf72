"""Imports or migrations that are killed at any moment, judged by what a plain read shows then.

    python bench/import_kills.py [--command import|migrate] [--rounds N] [--sizes BYTES,BYTES,…]
                                 [--seed N]

Each round of `import` writes a value, starts `treedb import --replace` of a file of each size and
kills it (SIGKILL) after a random time, and so once more when it goes on; then it is run to its end.
A file that is not valid, its last key, must leave the value that was there. A valid one must leave
that value, or members of the file and nothing else, and at the end the file. A file that was
changed between a kill and the next run must never be mixed with what was sent before.

Each round of `migrate` writes a value into the target, and starts `treedb migrate --once --replace`
of a database of each size, kills it after a random time, and so twice more; then it is run to its
end. The source must be what it was, the target members of both and nothing else, and at the end
the source.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request
from typing import Any

TREEDB = (sys.executable, "-m", "treedbd.cli")
BEFORE = {"old": {"a": 1}}
RECORD_BYTES = 250


def main() -> None:
    """Run the rounds; exit with 1 at the first read that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--command", choices=ROUNDS, default="import")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="0,1000,100000,3000000,30000000,300000000")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        daemon = subprocess.Popen(
            [*TREEDB, "serve", "--dev", "-l", "tcp:0:interface=127.0.0.1", "--data", folder / "d"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert daemon.stdout is not None
            ready = next(line for line in daemon.stdout if "treedb ready" in line)
            base = ready.split()[-1].rstrip("/")
            for size in map(int, chosen.sizes.split(",")):
                judge = ROUNDS[chosen.command]
                kills = [judge(folder, base, size, chance) for _ in range(chosen.rounds)]
                print(f"{size:>11,} bytes: {sum(kills)} kills, every read was right", flush=True)
        finally:
            daemon.terminate()
            daemon.wait()


def _import_round(folder: pathlib.Path, base: str, size: int, chance: random.Random) -> int:
    file = folder / "file.json"
    target = f"{base}/t.json?ns=demo"
    _put(target, BEFORE)
    kills = 0
    _write(file, size, "x", is_valid=False)
    for seconds in (chance.uniform(0.1, 3.0), None):
        kills += _import(file, base, seconds, is_valid=False)
        _check(_read(target) == BEFORE, f"a file of {size} bytes that is not valid: changed")
    _check(not list(folder.glob(".file.json*")), "a record of a refused file was left")
    members = _write(file, size, "x", is_valid=True)
    for _ in range(2):
        kills += _import(file, base, chance.uniform(0.1, 3.0 + size / 3e6))
        found = _read(target)
        _check(found == BEFORE or _is_part(found, members), f"a file of {size} bytes: mixed")
    if chance.random() < 0.5:
        members = _write(file, size, "y", is_valid=True)
        status = _import(file, base, None, may_refuse=True)
        if status:
            _import(file, base, None, "--restart")
    else:
        _import(file, base, None)
    _check(_read(target) == (members or None), f"a file of {size} bytes: not what was imported")
    _check(not list(folder.glob(".file.json*")), "a record was left")
    return kills


def _migrate_round(folder: pathlib.Path, base: str, size: int, chance: random.Random) -> int:
    file, token = folder / "file.json", folder / "token"
    token.write_text("owner")
    members = _write(file, size, chance.choice("xyz"), is_valid=True)
    source, target = f"{base}/.json?ns=source", f"{base}/.json?ns=target"
    _put(source, {})
    _put(target, BEFORE)
    _run("import", str(file), f"{base}/?ns=source")
    words = ["migrate", f"{base}/?ns=source", f"{base}/?ns=target", "--once", "--replace"]
    words += ["--source-token-file", str(token), "--token-file", str(token)]
    kills = 0
    for seconds in (*(chance.uniform(0.1, 2.0 + size / 2e7) for _ in range(3)), None):
        status, errors = _run(*words, seconds=seconds)
        kills += status is None
        _check(status in (None, 0), errors)
        _check(_read(source) == (members or None), f"a source of {size} bytes: changed")
        found = _read(target)
        _check(_is_part(found, {**BEFORE, **members}), f"a target of {size} bytes: mixed")
    _check(found == (members or None), f"a target of {size} bytes: not what the source has")
    return kills


ROUNDS = {"import": _import_round, "migrate": _migrate_round}


def _put(target: str, value: Any) -> None:
    request = urllib.request.Request(target, json.dumps(value).encode(), method="PUT")
    urllib.request.urlopen(request).close()


def _write(file: pathlib.Path, size: int, letter: str, *, is_valid: bool) -> dict[str, Any]:
    text = letter * (RECORD_BYTES - 20)
    members = {f"k{number:08}": text for number in range(size // RECORD_BYTES)}
    file.write_text(json.dumps(members if is_valid else {**members, "x.y": 1}))
    return members


def _import(
    file: pathlib.Path,
    base: str,
    seconds: float | None,
    *more: str,
    is_valid: bool = True,
    may_refuse: bool = False,
) -> int:
    """Import the file; return 1 if it was killed, or refused where that may be."""
    words = ["import", str(file), f"{base}/t?ns=demo", "--replace", *more]
    status, errors = _run(*words, seconds=seconds)
    if status is None:
        return 1
    _check(may_refuse or (status == 0) == is_valid, errors)
    return int(may_refuse and status != 0)


def _run(*words: str, seconds: float | None = None) -> tuple[int | None, str]:
    """Run a command; return its status, None if it was killed after `seconds`, and its errors."""
    process = subprocess.Popen([*TREEDB, *words, "--quiet"], stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, ""
    return process.returncode, errors.decode()


def _is_part(found: Any, members: dict[str, Any]) -> bool:
    return found is None or all(members.get(key) == value for key, value in found.items())


def _read(target: str) -> Any:
    with urllib.request.urlopen(target) as response:
        return json.load(response)


def _check(is_right: bool, sentence: str) -> None:
    if not is_right:
        sys.exit(f"Wrong: {sentence}")


if __name__ == "__main__":
    main()
