"""What a process may do that is not the superuser's."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

_NOBODY = 65534


@contextlib.contextmanager
def someone_else(owned: pathlib.Path) -> Iterator[None]:
    """Give up the rights of the superuser, if they are held; own all that lies in a folder."""
    before = os.geteuid()
    if before == 0:
        for parent in list(owned.parents)[:-2]:
            parent.chmod(parent.stat().st_mode | 0o011)
        for path in (owned, *owned.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)
