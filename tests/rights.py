"""Run a part of a test without the rights of the superuser."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

_UNPRIVILEGED_USER = 65534


@contextlib.contextmanager
def someone_else(owned: pathlib.Path) -> Iterator[None]:
    """Drop the rights of the superuser, if the process has them; own everything in a folder."""
    before = os.geteuid()
    if before == 0:
        for parent in list(owned.parents)[:-2]:
            parent.chmod(parent.stat().st_mode | 0o011)
        for path in (owned, *owned.rglob("*")):
            os.chown(path, _UNPRIVILEGED_USER, _UNPRIVILEGED_USER)
        os.seteuid(_UNPRIVILEGED_USER)
    try:
        yield
    finally:
        os.seteuid(before)
