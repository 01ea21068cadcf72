"""How far an import or an export has come, on standard error.

On a terminal it is a bar with rate and remaining time, and what is written to standard error while
it is shown appears above it; elsewhere only the last line is printed.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from treedbd.cli.exit import make_printable
from treedbd.limits import MIB


class ProgressReport:
    """Counts bytes, of a total that may be unknown; with `is_quiet` nothing is printed."""

    def __init__(self, title: str, total: int | None, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._begin = time.monotonic()
        self._bar: Any = None
        if not is_quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task(make_printable(title), total=total)
            self._bar.start()

    def advance_to(self, count: int) -> None:
        """Show that `count` bytes of the total are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=count)

    def stop(self) -> None:
        """Remove the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def finish(self, done: str, count: int) -> None:
        """Print what was done, with its bytes, its time and its rate."""
        self.stop()
        if self._is_quiet:
            return
        seconds = time.monotonic() - self._begin
        rate = count / MIB / max(seconds, 1e-3)
        line = f"{done}, {count:,} bytes in {seconds:.1f} s ({rate:.1f} MiB/s)"
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
