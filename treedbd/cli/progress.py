"""How far an import or an export has come, on standard error.

On a terminal it is a bar with rate and remaining time, and what is written to standard error while
it is shown appears above it; elsewhere a line is printed now and then, after ten seconds first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from treedbd.cli.exit import counted, make_printable
from treedbd.limits import MIB

FIRST_LINE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 60.0
_UNKNOWN: Final = "the total is not known"


class ProgressReport:
    """Counts bytes, of a total that may be unknown; with `is_quiet` nothing is printed."""

    def __init__(
        self,
        title: str,
        total: int | None,
        *,
        is_quiet: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_quiet: Final = is_quiet
        self._title = make_printable(title)
        self._total = total
        self._now = now
        self._begin = now()
        self._pause = FIRST_LINE_S
        self._next_line = self._begin + self._pause
        self._bar: Any = None
        if not is_quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(self._description(), total=total)
            self._bar.start()

    def set_total(self, total: int | None) -> None:
        """Note of how many bytes, None if that is not known."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total, description=self._description())

    def advance_to(self, count: int) -> None:
        """Show that `count` bytes of the total are done."""
        if self._total is not None and count > self._total:  # it was an estimate
            self.set_total(None)
        if self._bar is not None:
            self._bar.update(self._task, completed=count)
        elif not self.is_quiet and self._now() >= self._next_line:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            self._next_line = self._now() + self._pause
            line = f"{self._title}: {self._describe(count)}"
            print(line, file=sys.stderr, flush=True)

    def _describe(self, count: int) -> str:
        if not self._total or not count:
            return f"{count / MIB:,.1f} MiB, {_UNKNOWN}"
        left = (self._now() - self._begin) * (self._total - count) / count
        share = f"{count / MIB:,.1f} of {self._total / MIB:,.1f} MiB"
        return f"{share} ({100 * count // self._total} %), about {left:,.0f} s left"

    def _description(self) -> str:
        return self._title if self._total else f"{self._title} ({_UNKNOWN})"

    def stop(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def finish(self, done: str, count: int) -> None:
        """Print what was done, with its bytes, its time and its rate."""
        self.stop()
        if self.is_quiet:
            return
        seconds = self._now() - self._begin
        rate = count / MIB / max(seconds, 1e-3)
        line = f"{done}, {counted(count, 'byte')} in {seconds:.1f} s ({rate:.1f} MiB/s)"
        print(line, file=sys.stderr, flush=True)


def _make_bar() -> Any:
    # Imported here because it takes longer to import than most commands take to run.
    progress: Any = import_module("rich.progress")
    console: Any = import_module("rich.console").Console(stderr=True)
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
    )
