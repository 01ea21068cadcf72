"""Resources of admins: backups of all databases are taken and listed.

Theory of operation. A backup is `treedb backup` in a process of its own (`cli/backup`), with a low
priority: it reads, checks and hashes all that there is, for which the daemon would have to pause.
Its lock on the directory keeps a second one from beginning, in this process or another. A thread
waits for its end. It goes on if the client disconnects, and ends with the daemon.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.backup_folder import BackupUnderWay, NoBackups, clean, list_backups
from treedbd.database.database import Database
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import in_own_thread
from treedbd.errors import in_one_line
from treedbd.http1.request import IHttp1Request
from treedbd.names import parse_label
from treedbd.tree.types import Json
from treedbd.web.databases import AT_ONCE, is_admin_of
from treedbd.web.reading import before_deadline
from treedbd.web.request import DataRequest
from treedbd.web.response import Response, json_response
from treedbd.web.rules import explain_without_rules

if TYPE_CHECKING:
    from treedbd.config.settings import Settings
    from treedbd.web.resource import DataHandlers

T = TypeVar("T")

_MODULE: Final = "treedbd.cli.backup"
_PROBLEMS: Final = {
    "full": "There is no space left for the backup; the older ones are untouched.",
    "failed": "The backup failed; the log of the server says why. The older ones are untouched.",
}


class Backups:
    """Takes backups, one at a time, and lists them.

    Attributes:
        is_set: whether a directory is set for them.

    """

    _log = Logger()

    def __init__(self, settings: Settings, reactor: Any) -> None:
        """Save the data of `settings`; nothing is done yet."""
        self._folder: Final = settings.backups
        self.is_set: Final = settings.backups is not None
        self._reactor = reactor
        self._command = _command(settings)
        self._process: subprocess.Popen[str] | None = None
        self._is_taking = False

    def start(self) -> None:
        """Remove what backups have left that were broken off."""
        if (folder := self._folder) is not None:
            self._in_thread(lambda: clean(folder))

    def stop(self) -> None:
        """End the backup that is being taken; what is left of it is removed at the next start."""
        if self._process is not None:
            self._process.terminate()

    def find(self) -> Deferred[list[Json]]:
        """Return the backups, the newest first; errbacks with `Unavailable`."""
        folder = self._folder
        if folder is None:
            raise NoBackups

        def find() -> list[Json]:
            try:
                return [attrs.asdict(each) for each in list_backups(folder)]
            except OSError as error:
                raise Unavailable(f"Backups cannot be listed ({error.strerror}).") from None

        return self._in_thread(find)

    def take(self, asked: Mapping[str, str]) -> Deferred[dict[str, Json]]:
        """Take a backup; fires with its name, time and size, and which databases it lacks.

        `asked` are the fields of the line in the log that say who has asked for it.
        Errbacks with `BackupUnderWay`, or with `Unavailable` if it fails. Cancelling ends the
        waiting only.
        """
        if self._folder is None:
            raise NoBackups
        if self._is_taking:
            raise BackupUnderWay
        self._is_taking = True
        taken: Deferred[dict[str, Json]] = Deferred()
        taking = self._in_thread(self._run)
        taking.addBoth(self._finish)
        taking.addCallback(self._log_taken, asked)
        taking.chainDeferred(taken)
        return taken

    def _run(self) -> dict[str, Json]:
        """Run the process to its end; in a thread."""
        with subprocess.Popen(  # noqa: S603 - a module of this package, without a shell
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self._process = process
            output, errors = process.communicate()
        for line in errors.splitlines():
            self._log.warn("{line}", line=line)
        try:
            report: dict[str, Json] = json.loads(output)
        except ValueError:
            report = {"problem": "failed"}
        problem = report.get("problem")
        if problem == "busy":
            raise BackupUnderWay
        if problem is not None:
            raise Unavailable(_PROBLEMS[str(problem)])
        return report

    def _finish(self, result: T) -> T:
        self._process, self._is_taking = None, False
        return result

    def _log_taken(self, report: dict[str, Json], asked: Mapping[str, str]) -> dict[str, Json]:
        """Log a backup that is complete, also if its client did not wait for it."""
        fields = {"backup": str(report["name"]), **asked}
        self._log.info("A backup was taken.", treedb_fields=fields)
        return report

    def _in_thread(self, work: Callable[[], T]) -> Deferred[T]:
        return in_own_thread(self._reactor, work, "backup")


def _command(settings: Settings) -> Sequence[str]:
    folder = settings.backups or pathlib.Path()
    paths = str(settings.data.absolute()), str(folder.absolute())
    kept = str(settings.backups_kept)
    return [sys.executable, "-m", _MODULE, *paths, kept, *settings.projects]


class BackupHandlers:
    """Handles the requests of admins that take backups, and list them."""

    def __init__(self, data: DataHandlers, backups: Backups) -> None:
        self._data = data
        self._backups = backups
        self._clock = data.context.clock

    async def backups(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """List the backups."""
        await self._data.identify_admin(wanted, database, "Access to the list of backups")
        if wanted.wants_explanation:
            return explain_without_rules(wanted)
        is_set = self._backups.is_set
        listed: list[Json] = await self._backups.find() if is_set else []
        return json_response(wanted, {"directory_set": is_set, "backups": listed})

    async def backup(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Take a backup of all databases; answer when it is complete."""
        deadline = self._clock.seconds() + wanted.timeout_s
        admin = await self._data.identify_admin(wanted, database, "Taking a backup")
        wanted.check_unconditional()
        if wanted.wants_explanation:
            return explain_without_rules(wanted, admin)
        project, by = database.project.name, (admin.auth or {}).get("uid")
        asked = {"project": project} | ({"by": in_one_line(by)} if isinstance(by, str) else {})
        taken = before_deadline(
            self._backups.take(asked), deadline, self._clock, "the backup was complete"
        )
        shown = await self._hide_others(wanted, project, await taken)
        return json_response(wanted, shown)

    async def _hide_others(
        self, wanted: DataRequest, own: str, report: dict[str, Json]
    ) -> dict[str, Json]:
        """Return the report of a backup without the names of databases of others, but counted.

        The sender is an admin of the project `own`.
        """
        labels = cast("list[str]", report["skipped"])
        names = [name for label in labels if (name := parse_label(label)) is not None]
        may_see: set[str] = {own}
        for at, project in enumerate(sorted({name.project for name in names} - may_see)):
            if at % AT_ONCE == AT_ONCE - 1:
                await deferLater(self._clock, 0)
            if await is_admin_of(self._data, wanted, project):
                may_see.add(project)
        skipped: list[Json] = [name.label for name in names if name.project in may_see]
        return {**report, "skipped": skipped, "others_skipped": len(labels) - len(skipped)}
