"""Servers for the measurements: treedb as it is installed, and its references.

All run on one core of this machine and leave another to the load. They listen on loopback and end
with the block that started them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TypeAlias

from callers import client_context
from load import pin

from tests.fork_server import SHARED, ForkedCommand, ForkedDaemon, fork_server
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import LOCAL_CERTIFICATE, LOCAL_KEY

if hasattr(os, "sched_getaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))  # those that this process may use
else:
    _CORES = list(range(os.cpu_count() or 1))
SERVER_CORE, LOAD_CORE = _CORES[0], _CORES[-1]
LISTEN = "tcp:0:interface=127.0.0.1"
OPEN_RULES = '{"rules": {".read": true, ".write": true}}'
CONFIG = """
default_project = "demo"
[projects.demo]
rules_file = "open.json"
"""
CHECKOUT = Path(__file__).parent.parent
TWISTD = str(Path(sys.executable).with_name("twistd"))
REFERENCE = str(Path(__file__).with_name("reference.py"))
TREEDB = (sys.executable, "-m", "treedbd.cli")
TOKEN_VARIABLE = "TREEDB_TOKEN"

Process: TypeAlias = subprocess.Popen[str] | ForkedDaemon


def start(
    *command: str,
    checkout: Path = CHECKOUT,
    output: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
    core: int | None = SERVER_CORE,
) -> Process:
    """Start a server with both its outputs in a file, or in one pipe, and with more variables.

    It runs the treedb of `checkout`, whichever is installed. The tests, which measure nothing, have
    a process that forks daemons, so that these do not import their modules.
    """
    is_forkable = command[0] == TWISTD or command[1:2] == (REFERENCE,)
    if SHARED in os.environ and is_forkable and checkout == CHECKOUT and not variables:
        return ForkedDaemon(fork_server(), command, Path.cwd(), output)
    return subprocess.Popen(
        [*(pin(core) if core is not None else ()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.STDOUT,
        text=True,
        env={**environment(checkout), **(variables or {})},
    )


def run_treedb(*words: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Run a treedb command to its end; for the tests it is forked, as daemons are."""
    command = [*TREEDB, *words]
    variables = {TOKEN_VARIABLE: token}
    if SHARED not in os.environ:
        environment = {**os.environ, **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    process = ForkedCommand(fork_server(), command, Path.cwd(), variables)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.wait(), output.decode(), errors.decode())


@contextlib.contextmanager
def serve(*command: str, checkout: Path = CHECKOUT) -> Iterator[str]:
    """Run a server within a block; yield the line by which it says that it is ready."""
    server = start(*command, checkout=checkout)
    try:
        yield first_line(server, r"[0-9]+|.*treedb ready .*")
    finally:
        server.terminate()
        server.wait()


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment of a process that runs the treedb of a checkout."""
    found = {**os.environ, "PYTHONPATH": str(checkout)}
    found.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    return found


def first_line(server: Process, pattern: str) -> str:
    """Return the first line of the output that matches, and read the rest in a thread.

    Raises RuntimeError, with the last lines, if the server ends before.

    A server whose output is not read stops when the pipe is full. The thread closes the pipe: the
    caller must not, as `with server` does, because the thread may be reading it.
    """
    output = server.stdout
    assert output is not None
    seen: deque[str] = deque(maxlen=20)
    for found in map(str.strip, output):
        if re.fullmatch(pattern, found):
            break
        seen.append(found)
    else:
        raise RuntimeError("\n".join(["The server has ended:", *seen]))
    threading.Thread(target=_read_rest, args=(output,), daemon=True).start()
    return found


def _read_rest(output: IO[str]) -> None:
    with output:
        deque(output, 0)


@contextlib.contextmanager
def serve_treedb(
    folder: str, config: str = CONFIG, *, secure: bool = False, checkout: Path = CHECKOUT
) -> Iterator[str]:
    """Run treedb on a free port; yield its base URL. Its process number is in the file `pid`.

    `config` is the text of a configuration, with open rules in the file `open.json` beside it.
    There is no way to development mode, which prints a line for each request. `secure` is for TLS.
    """
    listen = LISTEN
    if secure:
        ensure_local_certificate(Path(folder), datetime.datetime.now(datetime.UTC))
        key, certificate = f"{folder}/{LOCAL_KEY}", f"{folder}/{LOCAL_CERTIFICATE}"
        listen = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
    Path(folder, "open.json").write_text(OPEN_RULES)
    Path(folder, "treedb.toml").write_text(config)
    flags = ["--data", folder, "--config", f"{folder}/treedb.toml", "--listen", listen]
    command = [TWISTD, "-n", f"--pidfile={folder}/pid", "treedb", *flags]
    with serve(*command, checkout=checkout) as ready:
        yield ready.split()[-1]


@contextlib.contextmanager
def serve_reference(kind: str, folder: str | None = None) -> Iterator[str]:
    """Run one of the references, with a folder over TLS; yield its base URL."""
    words = [kind] if folder is None else [kind, folder]
    with serve(sys.executable, REFERENCE, *words) as port:
        yield f"{'http' if folder is None else 'https'}://127.0.0.1:{port}"


def put(url: str, body: str, method: str = "PUT") -> None:
    """Write one value."""
    request = urllib.request.Request(url, body.encode(), method=method)
    urllib.request.urlopen(request, context=client_context()).close()
