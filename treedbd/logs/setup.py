"""The log of a daemon, by the options of twistd and the format of the settings.

Twisted looks whether the application names an observer; `--logger` and `--syslog` come before it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import attrs

from treedbd.errors import OperatorError
from treedbd.logs.lines import FormatEntry, format_json, format_text
from treedbd.logs.output import LogFile, LogWriter, write_to_stream

DEFAULT_FILE: Final = "twistd.log"
"""Where a daemon logs that was sent to the background without `--logfile`."""
FORMATS: Final[Mapping[str, FormatEntry]] = {"text": format_text, "json": format_json}


class CannotLog(OperatorError):
    """A file for the log that cannot be written."""


@attrs.frozen
class LogOutput:
    """What writes the log, and the file that it writes to, None for standard output."""

    writer: LogWriter
    file: LogFile | None = None


@attrs.frozen
class LogTarget:
    """Where a daemon logs: to `file`, or to standard output if that is empty."""

    file: str = ""

    def open(self, log_format: str) -> LogOutput:
        """Return what writes the log in a format; raise `CannotLog`."""
        format_entry = FORMATS[log_format]
        if not self.file:
            return LogOutput(LogWriter(write_to_stream(sys.stdout), format_entry))
        try:
            file = LogFile(self.file)
        except OSError as error:
            raise CannotLog(
                f"The log file {self.file}",
                f"cannot be written ({error.strerror})",
                "choose another --logfile",
            ) from None
        return LogOutput(LogWriter(file.write, format_entry), file)


def find_target(options: Mapping[str, Any], *, in_foreground: bool) -> LogTarget | None:
    """Return where to log by the `options` of twistd; None if it is not for us to log."""
    if options.get("logger") or options.get("syslog"):
        return None
    file = options.get("logfile") or ""
    if file == "-":
        return LogTarget() if in_foreground else None  # twistd says what is wrong with that
    return LogTarget(file or ("" if in_foreground else DEFAULT_FILE))
