"""Files: created safely, private to their owner, durable; and those that treedb came with.

Directories are created with mode 0700 and files with 0600, whatever the umask is. A file appears
under its name complete and on the disk, or not at all. Nothing here knows what is in the files.

An `Installation` says how this copy of treedb was installed, and what adds an extra to it. The name
of the distribution is not that of the command: `treedb` on the package index belongs to another
project. `find_project_file` finds the files beside the code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import shlex
import shutil
import stat
import sys
import threading
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import IO, Any, Final

import attrs

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a write for which there is no room."""

NO_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors of an opening for which the process or the system has no descriptor left."""

READABLE_BY_OTHERS: Final = "Other users of this machine can read {file}: run chmod 600 on it."
WAS_READABLE_BY_OTHERS: Final = (
    "Other users of this machine could read {file}; its mode is now 0600. If one of them may have "
    "read it, remove it: the next start makes another."
)

UNFINISHED: Final = ".new"
"""The end of the name of a file that `write_atomically` has not finished."""
_BLOCK = 64 * 1024
_LARGE_BYTES = 16 * 1024 * 1024
_COPIED_AT_ONCE = 1024 * 1024


def create_directory(path: pathlib.Path) -> None:
    """Create a directory for its owner alone if it is missing, and its missing parents."""
    if path.is_dir():
        return
    create_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        make_directory(path)


def make_directory(path: pathlib.Path) -> None:
    """Create a directory for its owner alone; raise FileExistsError if there is anything."""
    path.mkdir(0o700)
    path.chmod(0o700)
    sync_directory(path.parent)


def open_private(path: pathlib.Path, flags: int) -> int:
    """Open a file for its owner alone and return the descriptor; `flags` as in `os.open`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_at(path: pathlib.Path, descriptor: int) -> bool:
    """Return whether an open file is still the one under its name; raise OSError."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def create_private(path: pathlib.Path) -> int:
    """Create a file for its owner alone and return the descriptor; it replaces any of that name.

    A link of that name is removed and not followed, so that nothing elsewhere is overwritten.
    """
    path.unlink(missing_ok=True)
    return open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def copy_private(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a regular file to a new one for its owner alone, durably; raise OSError."""
    with open_regular(source) as old:
        descriptor = open_private(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "wb") as new:
            shutil.copyfileobj(old, new, _COPIED_AT_ONCE)
            new.flush()
            os.fsync(new.fileno())


def open_regular(path: pathlib.Path) -> IO[bytes]:
    """Open a regular file to read it; raise OSError, also for any other kind of file."""
    # Without O_NONBLOCK the opening of a named pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))
    return open(descriptor, "rb")


def is_open_to_others(path: pathlib.Path) -> bool:
    """Return whether a file or directory exists and others than its owner have access to it."""
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False


def close_to_others(path: pathlib.Path) -> bool:
    """Remove the access of others to a file; return whether they had any and it was removed."""
    was_open = is_open_to_others(path)
    if was_open:
        with contextlib.suppress(OSError):
            path.chmod(0o600)
    return was_open and not is_open_to_others(path)


def has_descriptors() -> bool:
    """Return whether a file can be opened: whether the process has a descriptor left."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in NO_DESCRIPTOR_ERRNOS
    return True


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Create a file, or replace it; a crash at any moment leaves all of it or nothing new.

    Raises OSError; then at most an unfinished file is left, which the next call overwrites.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    descriptor = create_private(unfinished)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def allocate(descriptor: int, start: int, size: int) -> None:
    """Allocate `size` bytes of real blocks from `start`, the end of a file; raise OSError."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, start, size)
    else:
        zeros = bytes(_BLOCK)
        for at in range(start, start + size, _BLOCK):
            os.pwrite(descriptor, zeros[: start + size - at], at)


def sync_directory(path: pathlib.Path) -> None:
    """Make the entries of a directory durable: names added, changed and removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close_temporary(file: IO[bytes], size: int) -> None:
    """Close a temporary file of `size` bytes, a large one in a thread: giving its room back blocks.

    The caller must not use it any more.
    """
    if size < _LARGE_BYTES:
        file.close()
    else:
        threading.Thread(target=file.close, name="close a temporary file").start()


DISTRIBUTION: Final = "treedbd"

SAMPLES: Final = (
    "Caddyfile",
    "Containerfile",
    "certbot-deploy-hook",
    "compose.yaml",
    "grafana-dashboard.json",
    "nginx.conf",
    "prometheus-alerts.yml",
    "treedb.service",
    "treedb.socket",
    "treedb.sysusers",
    "treedb.tmpfiles",
    "treedb.toml",
)
"""The files of `conf/`, which operators copy and change."""

_CHECKOUT: Final = pathlib.Path(__file__).parents[1]


@attrs.frozen
class Installation:
    """A copy of treedb: the environment of Python that it is in, and the tool that put it there.

    `source` says where the distribution came from: None for the index, else a URL as `pip` takes
    it. `checkout` is the folder of an editable installation, None for any other.
    """

    prefix: pathlib.Path
    python: str
    installer: str = "pip"
    source: str | None = None
    checkout: pathlib.Path | None = None

    def line_for(self, extra: str) -> str:
        """Return the command line that adds an extra, and with it the libraries that it names."""
        return f"{self._command()} {self._requirement(extra)}"

    def _command(self) -> str:
        if (self.prefix / "pipx_metadata.json").exists():
            return "pipx install --force"  # without it pipx leaves what is there as it is
        if (self.prefix / "uv-receipt.toml").exists():
            return "uv tool install"
        if self.installer == "uv":
            return f"uv pip install --python {shlex.quote(self.python)}"
        return f"{shlex.quote(self.python)} -m pip install"

    def _requirement(self, extra: str) -> str:
        if self.checkout is not None:
            return f"--editable {shlex.quote(f'{self.checkout}[{extra}]')}"
        source = "" if self.source is None else f" @ {self.source}"
        return shlex.quote(f"{DISTRIBUTION}[{extra}]{source}")


def read_installation() -> Installation:
    """Return how the copy that runs was installed."""
    # Only an error needs it, and every command would wait for its import.
    metadata = import_module("importlib.metadata")
    prefix = pathlib.Path(sys.prefix)
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # the path of Python leads to a checkout
        return Installation(prefix, sys.executable, checkout=_CHECKOUT)
    installer = (found.read_text("INSTALLER") or "pip").strip()
    # PEP 610; what came from the index has no such file.
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    checkout = _CHECKOUT if origin.get("dir_info", {}).get("editable") else None
    return Installation(
        prefix=prefix,
        python=sys.executable,
        installer=installer,
        source=_source(origin),
        checkout=checkout,
    )


def find_project_file(path: str) -> Traversable:
    """Return a file of `docs/` or `conf/`, or a page beside them, by its path in a checkout.

    A wheel holds copies of them. The file may be missing.
    """
    copies = files("treedbd") / "project"
    return (copies if copies.is_dir() else _CHECKOUT) / path


def _source(origin: dict[str, Any]) -> str | None:
    if "url" not in origin:
        return None
    url, repository = origin["url"], origin.get("vcs_info")
    if repository is None:
        return str(url)
    revision = repository.get("requested_revision", repository["commit_id"])
    return f"{repository['vcs']}+{url}@{revision}"
