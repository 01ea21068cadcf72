"""Runs a command in the sandbox of a unit of systemd, as far as that can be had without systemd.

`python tests/sandbox.py UNIT FOLDER COMMAND...`: the command may write to FOLDER only. It runs as
another user if this one is root. A system call that the unit does not allow kills it, where systemd
would let the call fail. Namespaces of mounts need root; without, files are as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

USER = 65534
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_MDWE = 65
_MDWE_REFUSE_EXEC_GAIN = 1
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_NEW_MOUNTS = 0x20000
_BIND, _PRIVATE = 0x1000, 0x44000
_MOUNT_SETATTR = 442
_RECURSIVE, _READ_ONLY = 0x8000, 1

_C = ctypes.CDLL(None, use_errno=True)


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
    ]


def read_unit(file: pathlib.Path) -> dict[str, list[str]]:
    """Return the values of each key of a unit."""
    values: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        key, is_value, value = line.partition("=")
        if is_value and not line.startswith("#"):
            values.setdefault(key, []).append(value)
    return values


def allowed_calls(filters: list[str]) -> set[str]:
    """Return the system calls that lines of SystemCallFilter= allow."""
    printed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sets: dict[str, list[str]] = {}
    members: list[str] = []
    for line in printed.splitlines():
        if line.startswith("@"):
            members = sets.setdefault(line.strip(), [])
        elif line.strip() and not line.strip().startswith("#"):
            members.append(line.strip())

    def expand(name: str) -> Iterator[str]:
        if not name.startswith("@"):
            yield name
            return
        for member in sets[name]:
            yield from expand(member)

    # systemd always allows these for an allow list.
    allowed = set(expand("@default"))
    for line in filters:
        names = {call for name in line.lstrip("~").split() for call in expand(name)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def filter_calls(allowed: set[str], families: list[str]) -> None:
    """Let the kernel kill the process for other system calls, and refuse other sockets."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_KILL)))
    for name in allowed - {"socket"}:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            library.seccomp_rule_add_array(context, ctypes.c_uint32(_ALLOW), number, 0, None)
    number = library.seccomp_syscall_resolve_name(b"socket")
    known = {int(getattr(socket, name)) for name in families}
    for family in range(50):
        action = _ALLOW if family in known else _ERRNO | 97  # EAFNOSUPPORT
        equal = _Comparison(0, 4, family, 0)
        library.seccomp_rule_add_array(
            context, ctypes.c_uint32(action), number, 1, ctypes.byref(equal)
        )
    if library.seccomp_load(context) != 0:
        raise OSError("the filter of system calls cannot be loaded")


def make_read_only(writable: str) -> None:
    """Make all files read-only but those of a folder, for this process and its children."""
    _check(_C.unshare(_NEW_MOUNTS))
    _check(_C.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None))
    path = writable.encode()
    _check(_C.mount(path, path, None, ctypes.c_ulong(_BIND), None))
    for place, change in (
        (b"/", struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)),
        (path, struct.pack("QQQQ", 0, _READ_ONLY, 0, 0)),
    ):
        result = _C.syscall(
            _MOUNT_SETATTR, -100, place, ctypes.c_uint(_RECURSIVE), change, ctypes.c_size_t(32)
        )
        _check(result)
    options = b"hidepid=invisible,subset=pid"
    _check(_C.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), options))


def is_usable_by_others(path: pathlib.Path) -> bool:
    """Return whether another user can reach a path, such as the interpreter of a checkout."""
    return all(each.stat().st_mode & 0o001 for each in path.parents)


def main() -> None:
    """Enter the sandbox and become the command."""
    unit, folder, *command = sys.argv[1:]
    values = read_unit(pathlib.Path(unit))
    allowed = allowed_calls(values["SystemCallFilter"])
    limit = int(values["LimitNOFILE"][0])
    with contextlib.suppress(ValueError, PermissionError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    os.umask(int(values["UMask"][0], 8))
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # root of a container
            make_read_only(folder)
        os.chdir(folder)
        if is_usable_by_others(pathlib.Path(sys.executable)):
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
    os.environ["TMPDIR"] = folder
    _check(_C.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if values.get("MemoryDenyWriteExecute") == ["yes"]:
        with contextlib.suppress(OSError):  # older kernels have it not
            _check(_C.prctl(_PR_SET_MDWE, _MDWE_REFUSE_EXEC_GAIN, 0, 0, 0))
    filter_calls(allowed, values["RestrictAddressFamilies"][0].split())
    os.execvp(command[0], command)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
