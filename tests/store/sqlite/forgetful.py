"""A directory on a file system that forgets what was done to its entries until it is synced itself.

Btrfs is like that: the sync of one file carries what is in that file, and not that another one was
removed before.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest


class ForgetfulDirectory:
    """The entries of a directory as a power failure would leave them, if all contents survive.

    SQLite syncs directories without Python, so `sync` has to be called for that.
    """

    def __init__(
        self, folder: pathlib.Path, kept: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Notice syncs of `folder` from now on; `kept` is a folder that does not exist."""
        self._folder, self._kept = folder, kept
        fsync = os.fsync

        def notice(descriptor: int) -> None:
            fsync(descriptor)
            if folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat()):
                self.sync()

        monkeypatch.setattr(os, "fsync", notice)
        self.sync()

    def sync(self) -> None:
        """Make the entries durable, as they are."""
        shutil.rmtree(self._kept, ignore_errors=True)
        self._kept.mkdir()
        for file in self._folder.iterdir():
            (self._kept / file.name).hardlink_to(file)

    def cut_power(self, target: pathlib.Path) -> None:
        """Copy what is left to a folder that does not exist."""
        shutil.copytree(self._kept, target)
