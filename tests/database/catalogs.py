"""Catalogs of SQLite files in tests, and what their callers do with the databases."""

from __future__ import annotations

import itertools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure

from tests.database.world import TurnClock, run_at_once
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.open_databases import OpenBounds
from treedbd.database.requests import Caller, Outcome, ProjectSpec, Write
from treedbd.database.runtime import OtherProcesses, Problem, RunInThread, Runtime
from treedbd.database.session_owners import MemoryOwner, SessionOwner
from treedbd.limits import MIB, HookLimits, ReaderLimits
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.hooks import Hook
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place
from treedbd.tree.value import plain

ANONYMOUS: Final = Caller(None)
PROJECT: Final = ProjectSpec("p", None)
TIMEOUT_S: Final = 30.0

_ids = itertools.count(1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_catalog(
    folder: pathlib.Path,
    *projects: ProjectSpec,
    any_project: bool = False,
    allow: bool = True,
    max_databases: int = 100,
    max_open: int = 100,
    cache_bytes: int = 64 * MIB,
    run_in_thread: RunInThread = run_at_once,
    lock: DirectoryLock | None = None,
    accept_loss: bool = False,
    owner: SessionOwner | None = None,
    others: OtherProcesses | None = None,
    readers: ReaderLimits | None = None,
    first_cursors: Mapping[str, bool] = MappingProxyType({}),
    now_ms: Callable[[], int] = _now_ms,
    hooks_of: Callable[[DatabaseName], Sequence[Hook]] = lambda _: (),
    hook_limits: HookLimits | None = None,
    clock: TurnClock | None = None,
) -> tuple[Catalog, TurnClock]:
    """Return a catalog that has found its databases, and its clock."""
    clock = clock or TurnClock()
    catalog = Catalog(
        folder,
        "sqlite",
        {project.name: project for project in projects},
        any_project=any_project,
        first_rules=OPEN if allow else DENY,
        max_databases=max_databases,
        bounds=OpenBounds(max_open, cache_bytes),
        runtime=Runtime(
            clock,
            lambda size: next(_ids).to_bytes(size, "big"),
            run_in_thread,
            owner=owner or MemoryOwner(),
            readers=readers or ReaderLimits(),
            first_cursors=first_cursors,
            now_ms=now_ms,
            hooks_of=hooks_of,
            hook_limits=hook_limits or HookLimits(),
        ),
        retain_events=10,
        others=others,
    )
    catalog.open(lock, accept_loss=accept_loss)
    return catalog, clock


def find(catalog: Catalog, database: str) -> Database:
    """Return a database of the project `p`."""
    return catalog.find(DatabaseName("p", database))


def make_write(value: Json) -> Write:
    """Return a write of a value to `/a`."""
    return Write(make_put(Place(("a",)), value), 0, ANONYMOUS)


def put(database: Database, clock: Clock, value: Json) -> Outcome | Exception:
    """Write to `/a` of a database, and commit; return the outcome."""
    found: list[Outcome | Exception] = []
    waiting = database.write(make_write(value))
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    clock.advance(0)
    (result,) = found
    return result


def read(database: Database) -> Json:
    """Return all that a database holds."""
    return database.read(lambda nodes: plain(nodes.get(())))


def acquire(catalog: Catalog, database: Database) -> Deferred[None] | None:
    """Acquire a database as a request does."""
    return catalog.acquire(database, TIMEOUT_S)


def use(catalog: Catalog, database: Database) -> Exception | None:
    """Acquire and release a database; return why it could not be opened, None if it could."""
    found: list[Exception] = []
    opening: Deferred[Any] | None = acquire(catalog, database)
    if opening is not None:
        opening.addErrback(_append_value, found)
    catalog.release(database)
    return found[0] if found else None


def _append_value(failure: Failure, found: list[Any]) -> None:
    found.append(failure.value)


def close(catalog: Catalog) -> None:
    """Close a catalog whose blocking work is done at once."""
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    assert closed == [None]


def problems(catalog: Catalog) -> list[Problem]:
    """Return what keeps its databases from being served."""
    found: list[list[Problem]] = []
    catalog.find_problems().addCallback(found.append)
    (result,) = found
    return result


def refusal(folder: pathlib.Path, *projects: str) -> str:
    """Return the sentence in the log about the one thing that a catalog refuses."""
    with capturedLogs() as events:
        catalog, clock = make_catalog(folder, *map(ProjectSpec, projects))
        clock.advance(0)
    assert len(problems(catalog)) == 1
    close(catalog)
    (sentence,) = [formatEvent(each) for each in events if each["log_level"] is LogLevel.error]
    assert "\n" not in sentence
    return sentence


def shelves(folder: pathlib.Path) -> list[str]:
    """Return the files of databases in a data directory."""
    return sorted(str(file.relative_to(folder)) for file in folder.glob("*/*.shelf"))
