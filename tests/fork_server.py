"""Daemons, workers and commands that begin with their modules imported, forked by a server.

Imports are nine tenths of the processor time of a start. Everything after them is as in a process
of its own: signals, descriptors, threads, exit. What such a process is not: named `twistd` in the
table of processes, and of a hash seed of its own; and at its end it does not free its objects.

A daemon that is to have workers first forks a `WorkerForks`, a child that forks each worker later,
as it would be forked by the server. The daemon is the parent of its workers, as of those that it
starts itself: their first parent ends at once, and the kernel makes them children of the daemon.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pathlib
import re
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, BinaryIO, Final, TextIO

import twisted.internet
from twisted.application.reactors import IReactorInstaller
from twisted.application.service import IServiceMaker
from twisted.internet.process import Process
from twisted.plugin import getPlugins
from twisted.scripts import twistd

MODULES: Final = (
    "treedbd.daemon",
    "treedbd.service",
    "treedbd.tap",
    "treedbd.workers.process",
    "treedbd.workers.supervisor",
    *("treedbd.cli.data", "treedbd.cli.parser", "treedbd.cli.rules"),
    *("cryptography.hazmat.backends.openssl.backend", "twisted.cred.strcred"),
    *("twisted.internet.epollreactor", "twisted.plugins", "twisted.scripts._twistd_unix"),
)
"""What is imported before, with all that it imports; not the reactor, of which each has its own."""
PROJECT: Final = pathlib.Path(__file__).parent.parent
MOST_BYTES: Final = 65_536
"""The longest request: a command line and a folder."""
MOST_DESCRIPTORS: Final = 200
NEW_PROCESSES: Final = "TREEDB_TEST_NEW_PROCESSES"
"""The environment variable with which nothing is forked: each process imports its modules."""
WORKER: Final = "treedbd.workers.process"
FORKING: Final = "worker forks"
"""What a `WorkerForks` is named in the table of processes."""
_PR_SET_CHILD_SUBREAPER: Final = 36
SHARED: Final = "TREEDB_TEST_FORK_SERVER"
"""The environment variable with the descriptor of a server that another process has started."""


class ForkedProcess:
    """What `subprocess.Popen` offers, of a process that is a child of the server.

    Attributes:
        pid: its number, which no other process has before `poll` or `wait` has found its end.
        returncode: its exit status, negative for a signal; None before that.

    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        """Watch a process that has been forked."""
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._lock = threading.Lock()
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it is running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status. Raises subprocess.TimeoutExpired."""
        with self._lock:
            if self.returncode is None:
                ended = select.poll()
                ended.register(self._descriptor, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired("twistd", timeout or 0)
                self.returncode = self._server.reap(self.pid)
                os.close(self._descriptor)
            return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, if it is running."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if it is running."""
        self.send_signal(signal.SIGKILL)


class ForkedDaemon(ForkedProcess):
    """A forked process with its two outputs in one pipe, or in a file.

    Given the reading end of a pipe, which it closes, it does nothing before the pipe has an end.
    Given the number of a process, it is in the user and mount namespaces of that.

    Attributes:
        stdout: the pipe, as text; None if there is none.

    """

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        folder: pathlib.Path,
        output: IO[bytes] | None = None,
        *,
        begin: int | None = None,
        beside: int | None = None,
    ) -> None:
        """Fork it."""
        self.stdout: TextIO | None = None
        if output is None:
            reading, writing = os.pipe()
            self.stdout = os.fdopen(reading, errors="replace")
        else:
            writing = os.dup(output.fileno())
        super().__init__(
            server, server.fork(command, folder, [writing], begin=begin, beside=beside)
        )


class ForkedCommand(ForkedProcess):
    """A forked process with a pipe each for its input, its output and its errors."""

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        folder: pathlib.Path,
        variables: Mapping[str, str],
        output: IO[Any] | None = None,
    ) -> None:
        """Fork it, with some other variables in its environment.

        Its output is a file instead if one is given, and `stdout` is empty.
        """
        (stdin, writing), (reading, stderr) = os.pipe(), os.pipe()
        self.stdin: BinaryIO = os.fdopen(writing, "wb")
        self.stderr: BinaryIO = os.fdopen(reading, "rb")
        if output is None:
            also_reading, stdout = os.pipe()
        else:
            also_reading, stdout = os.open(os.devnull, os.O_RDONLY), os.dup(output.fileno())
        self.stdout: BinaryIO = os.fdopen(also_reading, "rb")
        pid = server.fork(command, folder, [stdin, stdout, stderr], variables)
        super().__init__(server, pid)

    def communicate(self, stdin: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Write its input and wait for its end; return its outputs.

        Raises subprocess.TimeoutExpired if it takes longer; it is killed then.
        """
        with ThreadPoolExecutor(3) as pool:
            pool.submit(write_all, self.stdin, stdin)
            output, errors = (pool.submit(read_all, each) for each in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return output.result(), errors.result()


class ForkServer:
    """A process that has imported what a daemon imports, and forks one for each command.

    A program that is given its descriptor in `SHARED` has it too, while nothing else uses it.
    """

    def __init__(self) -> None:
        """Start it, unless it is shared."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if SHARED in os.environ:
            self._requests = socket.socket(fileno=os.dup(int(os.environ[SHARED])))
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                cwd=PROJECT,
                env=first_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def descriptor(self) -> int:
        """What a program inherits that shares this server."""
        return self._requests.fileno()

    def fork(
        self,
        command: Sequence[str],
        folder: pathlib.Path,
        descriptors: Sequence[int],
        variables: Mapping[str, str] | None = None,
        *,
        begin: int | None = None,
        beside: int | None = None,
    ) -> int:
        """Run a command of `twistd` or `treedb` in a folder; return the number of its process.

        It may also be a Python program, `python -c PROGRAM` or `python FILE.py`, whose modules are
        imported already. It has three descriptors, or one for both outputs; they are closed in this
        process, as is `begin`, the pipe at whose end it begins. `beside` is a process whose
        namespaces it has.
        """
        request = {
            "command": command,
            "folder": str(folder),
            "variables": variables or {},
            "waits": begin is not None,
            "beside": beside,
        }
        passed = [*descriptors, *([] if begin is None else [begin])]
        try:
            return self._ask(request, passed)
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def reap(self, pid: int) -> int:
        """Return the exit status of a process that has ended."""
        return self._ask({"ended": pid})

    def close(self) -> None:
        """End the server; daemons that are running go on."""
        self._requests.close()
        if self._process is not None:
            self._process.wait()

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            answer = self._requests.recv(MOST_BYTES)
        assert answer, "The fork server has ended."
        return int(answer)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment without the one that differs in each test."""
    return {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}


@functools.cache
def first_environment() -> dict[str, str]:
    """Return the variables that forked processes have: those at the first call."""
    return passed_on(os.environ)


def limits() -> list[tuple[int, int]]:
    """Return the limits of resources that a process which is started now inherits."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return [resource.getrlimit(getattr(resource, name)) for name in names]


@functools.cache
def first_limits() -> list[tuple[int, int]]:
    """Return the limits that forked processes have: those at the first call."""
    return limits()


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a process may be forked that has this environment and inherits the rest."""
    if NEW_PROCESSES in environment or not hasattr(os, "pidfd_open"):
        return False
    return passed_on(environment) == first_environment() and limits() == first_limits()


@functools.cache
def fork_server() -> ForkServer:
    """Return the server of this process, which ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def run_program(
    command: Sequence[str], folder: pathlib.Path, seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command of `twistd` or `treedb` to its end, in a forked process if it can be.

    Raises subprocess.TimeoutExpired if it takes longer.
    """
    process: ForkedCommand | subprocess.Popen[bytes]
    if can_fork(os.environ):
        process = ForkedCommand(fork_server(), command, folder, {})
    else:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)
    output, errors = process.communicate(b"", seconds)
    assert process.returncode is not None
    return subprocess.CompletedProcess(
        command, process.returncode, output.decode(), errors.decode()
    )


def write_all(file: IO[bytes] | None, content: bytes) -> None:
    """Write the input of a process that may not read it."""
    assert file is not None
    with contextlib.suppress(BrokenPipeError), file:
        file.write(content)


def read_all(file: IO[bytes] | None) -> bytes:
    """Return an output of a process once it is closed."""
    assert file is not None
    with file:
        return file.read()


def serve(requests: socket.socket) -> list[str]:
    """Answer requests; return the command if this is a new process for one, else nothing."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not data:
            return []
        request = json.loads(data)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
        elif pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            requests.send(str(pid).encode())
        else:
            if request["waits"]:
                wait_for_end(descriptors.pop())
            if request["beside"] is not None:
                enter_namespaces(request["beside"])
            os.environ.update(request["variables"])
            command: list[str] = request["command"]
            become(command, request["folder"], descriptors)
            return command


def wait_for_end(pipe: int) -> None:
    """Wait until nothing can write to a pipe any longer, and close it."""
    os.read(pipe, 1)
    os.close(pipe)


def enter_namespaces(pid: int) -> None:
    """Be in the user and mount namespaces of another process; raise OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    for name in ("user", "mnt"):
        theirs = pathlib.Path(f"/proc/{pid}/ns/{name}")
        if theirs.readlink() == pathlib.Path(f"/proc/self/ns/{name}").readlink():
            continue  # nothing may enter the user namespace in which it is
        with theirs.open() as file:
            if library.setns(file.fileno(), 0):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(theirs))


def become(command: list[str], folder: str, descriptors: list[int]) -> None:
    """Make this process look to the program as one that was started with a command."""
    standard = descriptors if len(descriptors) == 3 else [0, *descriptors * 2]
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    open_standard_files()
    os.chdir(folder)
    if command[1] == "-m":
        sys.argv = [str(PROJECT.joinpath(*command[2].split("."), "__main__.py")), *command[3:]]
        sys.path[0] = folder
    elif command[1] == "-c":
        sys.argv = ["-c", *command[3:]]
        sys.path[0] = ""
    elif is_script(command):
        sys.argv = command[1:]
        sys.path[0] = str(pathlib.Path(command[1]).parent)
    else:
        sys.argv = command
        sys.path[0] = str(pathlib.Path(command[0]).parent)


def is_script(command: Sequence[str]) -> bool:
    """Return whether a command is Python with the file of a program."""
    return command[0] == sys.executable and command[1].endswith(".py")


def open_standard_files() -> None:
    """Open the standard files as at a start: those of the server have kept what they could do."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        file = open(  # noqa: SIM115
            number,
            "r" if name == "stdin" else "w",
            buffering=1 if name == "stderr" else -1,
            encoding=before.encoding,
            errors=before.errors,
            closefd=False,
        )
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


class WorkerForks:
    """A child of a daemon that forks its workers, made before the daemon has a reactor."""

    def __init__(self) -> None:
        """Fork it; `is_worker` is true in each worker, in which the constructor returns as well."""
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_worker = not os.fork()
        if self.is_worker:
            self._requests.close()
            self._serve(theirs)
        theirs.close()

    def install(self) -> None:
        """Have what Twisted would start as a worker forked, and be the parent of it."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        twisted_process: Any = Process
        start = twisted_process._fork

        def fork(process: Any, *words: Any, fdmap: Mapping[int, int], **more: Any) -> None:
            if WORKER not in words[4]:
                start(process, *words, fdmap=fdmap, **more)
                return
            socket.send_fds(self._requests, [json.dumps(list(fdmap)).encode()], [*fdmap.values()])
            process.pid, process.status = int(self._requests.recv(MOST_BYTES)), -1

        twisted_process._fork = fork

    def _serve(self, requests: socket.socket) -> None:
        """Fork workers until the daemon has ended; return in each of them."""
        name_process(FORKING)
        with open(os.devnull, "r+b") as nothing:
            for descriptor in range(3):
                os.dup2(nothing.fileno(), descriptor)
        while True:
            data, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, MOST_DESCRIPTORS)
            if not data:
                os._exit(0)
            reading, writing = os.pipe()
            if not (child := os.fork()):
                first = os.getpid()
                if pid := os.fork():
                    os.write(writing, str(pid).encode())
                    os._exit(0)
                while os.getppid() == first:
                    time.sleep(0.001)
                requests.detach()
                inherit(dict(zip(json.loads(data), descriptors, strict=True)))
                name_process("python")
                return
            os.waitpid(child, 0)
            requests.send(os.read(reading, MOST_BYTES))
            for descriptor in (reading, writing, *descriptors):
                os.close(descriptor)


def name_process(name: str) -> None:
    """Change the name of this process in the table of processes."""
    pathlib.Path("/proc/self/comm").write_text(name)


def inherit(descriptors: Mapping[int, int]) -> None:
    """Make this process have descriptors by these numbers, and no other."""
    above = max(*descriptors, *map(int, os.listdir("/proc/self/fd"))) + 1
    kept = {to: fcntl.fcntl(each, fcntl.F_DUPFD, above) for to, each in descriptors.items()}
    os.closerange(0, above)
    for to, each in kept.items():
        os.dup2(each, to)
        os.close(each)


def import_modules() -> None:
    """Import what a daemon imports, but make no reactor: forked processes would share its files.

    Klein imports the reactor, but uses it only for a daemon of its own.
    """
    name = "twisted.internet.reactor"
    sys.modules[name] = types.ModuleType(name)
    for each in MODULES:
        importlib.import_module(each)
    for interface in (IServiceMaker, IReactorInstaller):
        list(getPlugins(interface))  # which imports all plugins, as each daemon does
    del sys.modules[name]
    vars(twisted.internet).pop("reactor", None)
    gc.collect()
    gc.freeze()  # else each process that ends searches all of it for garbage, which takes longest


def main() -> None:
    """Serve until the other end is closed, or be a daemon or a worker in what was forked."""
    import_modules()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        command = serve(requests)
    if command:
        run_to_end(command)


def run_to_end(command: list[str]) -> None:
    """Run a command, and end as the interpreter does, only without freeing what it has imported.

    That would copy all memory that it shares with the server, and takes ten times as long as all
    the rest. An end that fails in any way is the interpreter's own.
    """
    try:
        run(command)
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    finishing: Any = threading
    finishing._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)
    os._exit(status & 0xFF)


def run(command: list[str]) -> None:
    """Be the command that `become` has prepared, or one of its workers."""
    if command[1] == "-c":
        exec(command[2], {"__name__": "__main__"})
        return
    if is_script(command):
        runpy.run_path(command[1], run_name="__main__")
        return
    if has_workers(command):
        forks = WorkerForks()
        if forks.is_worker:
            worker = sys.modules[WORKER]
            sys.argv = [str(worker.__file__)]
            worker.main()
            return
        forks.install()
    if sys.argv[0].endswith("__main__.py"):
        sys.exit(importlib.import_module("treedbd.cli.main").main())
    twistd.run()


def has_workers(command: Sequence[str]) -> bool:
    """Return whether a command is a daemon's, and it or its configuration speaks of workers."""
    if "--workers" in command:
        return True
    is_daemon = command[1] != "-m" or "serve" in command
    if not is_daemon or "--config" not in command[:-1]:
        return False
    try:
        text = pathlib.Path(command[command.index("--config") + 1]).read_bytes()
    except OSError:
        return False  # as the daemon will say
    return re.search(rb"^workers *=", text, re.MULTILINE) is not None


if __name__ == "__main__":
    main()
