"""What is looked up for metrics, in a worker thread: sizes on the disk, the process, the backup."""

from __future__ import annotations

import contextlib
import heapq
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final

import attrs
from prometheus_client.process_collector import ProcessCollector

from treedbd.database.data_directory import BACKUP_NOTE, measure_all
from treedbd.database.runtime import Problem
from treedbd.metrics.sources import Facts

LARGEST: Final = 20
"""Databases whose size is shown; each is a value of a label."""


class Looking:
    """Looks things up; what it returns may be used in any thread."""

    def __init__(
        self,
        folder: pathlib.Path | None,
        label_of: Callable[[str], str],
        *,
        has_backups: bool = True,
    ) -> None:
        """Measure the data directory `folder`, None if nothing is in files.

        `label_of` returns the name by which a project is shown, empty for one that is not.
        """
        self._folder = folder
        self._label_of = label_of
        self._has_backups = has_backups
        self._process = ProcessCollector(registry=None)

    def look_at_process(self) -> Mapping[str, float]:
        """Return the metrics of this process by name; none where there is no `/proc`."""
        families = self._process.collect()
        return {sample.name: sample.value for family in families for sample in family.samples}

    def look_at_data(self) -> Facts:
        """Return what the data directory shows."""
        if self._folder is None:
            return Facts()
        sizes = measure_all(self._folder)
        projects: Counter[str] = Counter()
        for name, size in sizes.items():
            projects[self._label_of(name.project)] += size
        largest = heapq.nlargest(LARGEST, sizes.items(), key=itemgetter(1))
        return Facts(
            {name: size for name, size in largest if self._label_of(name.project)},
            projects,
            self._find_free_bytes(),
            last_backup_at=self._find_last_backup() if self._has_backups else None,
        )

    def _find_free_bytes(self) -> int | None:
        with contextlib.suppress(OSError):
            found = os.statvfs(self._folder or "")
            return found.f_bavail * found.f_frsize
        return None

    def _find_last_backup(self) -> float:
        with contextlib.suppress(OSError):
            # Not what it holds: another user may have written it, for himself alone.
            return (self._folder or pathlib.Path()).joinpath(BACKUP_NOTE).stat().st_mtime
        return 0.0


def add_problems(facts: Facts, problems: Iterable[Problem], ends_at: float | None) -> Facts:
    """Return facts with the problems there are, and with when the first certificate ends."""
    found = list(problems)
    return attrs.evolve(
        facts,
        problems=len(found),
        write_problems=sum(each.refuses_writes for each in found),
        certificate_ends_at=ends_at,
    )
