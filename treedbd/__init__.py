"""treedb: a self-hosted JSON tree database, one Twisted daemon over HTTPS.

What programs may import is here: `open_shelf` and `Shelf` to use the file of a database as a
mapping, `TreeService` with its settings to embed the daemon, and `LocalDatabase`, its `database()`,
to use one without HTTP. Each is imported on first use.

The packages and modules, from the top down; each imports only those below it:

cli          the commands, such as `treedb serve` and `treedb get`
tap          the command line of the daemon, for twistd
daemon       the process: the service with its signals, its messages and its exit
workers      a parent process and its workers
service      everything that runs, with its order of start and stop
embedding    databases in process, for programs that embed the service
cluster      databases in PostgreSQL, which several daemons serve
operating    logs, metrics, health, spans
config       settings, endpoints, certificates, credentials
web          requests to responses: the interface, streams, the real-time protocol, tokens
http1        the HTTP/1.1 server
database     reads, group commit, watchers, the rules in force
rules        the rules language
store        rows in an engine, in a file, in memory or in PostgreSQL
tree         pure values: paths, order, edits, queries, events
counting     what has a limit: connections, streams, requests in a second, bytes that are held
names        names of projects and databases; which proxies are trusted
process      what a process does to itself: signals, limits, memory
caches       bounded caches of results
limits       every limit, with its default, bounds and unit
errors       errors for operators, text that is safe in a log
files        files created safely; the installation
loop         turns of the reactor, functions cut into steps
traces       the seam between requests and the exporter of spans
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # not that of `typing`: `treedb --version` is faster without it
if TYPE_CHECKING:
    from treedbd.config.listening import CannotStart
    from treedbd.config.settings import ProjectSettings, Settings, load_settings
    from treedbd.config.values import ConfigError
    from treedbd.database.requests import (
        ConditionFailed,
        DeadlinePassed,
        OutcomeInDoubt,
        PermissionDenied,
        QuotaExceeded,
        TooLarge,
        Unavailable,
        UnknownDatabase,
    )
    from treedbd.embedding.database import ABORT, LocalDatabase, TaggedValue
    from treedbd.embedding.requests import QueryOptions
    from treedbd.embedding.watch import Watch, WatchEvent
    from treedbd.limits import Limits, RulesLimits, StreamLimits
    from treedbd.service import TreeService
    from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
    from treedbd.store.shelf import ReadOnlyShelf, Shelf, open_shelf
    from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery
    from treedbd.web.auth.verifier import ADMIN, Auth, Identify

__all__ = [
    "ABORT",
    "ADMIN",
    "Auth",
    "CannotOpenStore",
    "CannotStart",
    "ConditionFailed",
    "ConfigError",
    "DeadlinePassed",
    "DiskFull",
    "Identify",
    "InvalidData",
    "InvalidPath",
    "InvalidQuery",
    "Limits",
    "LocalDatabase",
    "OutcomeInDoubt",
    "PermissionDenied",
    "ProjectSettings",
    "QueryOptions",
    "QuotaExceeded",
    "ReadOnlyShelf",
    "RulesLimits",
    "Settings",
    "Shelf",
    "StoreFailed",
    "StreamLimits",
    "TaggedValue",
    "TooLarge",
    "TreeService",
    "Unavailable",
    "UnknownDatabase",
    "Watch",
    "WatchEvent",
    "__version__",
    "load_settings",
    "open_shelf",
]

_MODULES = {
    "ABORT": "embedding.database",
    "ADMIN": "web.auth.verifier",
    "Auth": "web.auth.verifier",
    "Identify": "web.auth.verifier",
    "CannotOpenStore": "store.engine",
    "CannotStart": "config.listening",
    "ConditionFailed": "database.requests",
    "ConfigError": "config.values",
    "DeadlinePassed": "database.requests",
    "DiskFull": "store.engine",
    "InvalidData": "tree.types",
    "InvalidPath": "tree.types",
    "InvalidQuery": "tree.types",
    "Limits": "limits",
    "LocalDatabase": "embedding.database",
    "OutcomeInDoubt": "database.requests",
    "PermissionDenied": "database.requests",
    "ProjectSettings": "config.settings",
    "QueryOptions": "embedding.requests",
    "QuotaExceeded": "database.requests",
    "ReadOnlyShelf": "store.shelf",
    "RulesLimits": "limits",
    "Settings": "config.settings",
    "Shelf": "store.shelf",
    "StoreFailed": "store.engine",
    "StreamLimits": "limits",
    "TaggedValue": "embedding.database",
    "TooLarge": "database.requests",
    "TreeService": "service",
    "Unavailable": "database.requests",
    "UnknownDatabase": "database.requests",
    "Watch": "embedding.watch",
    "WatchEvent": "embedding.watch",
    "load_settings": "config.settings",
    "open_shelf": "store.shelf",
}


def __getattr__(name: str) -> object:
    """Import a name on its first use (PEP 562): most programs need one of them, not all."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
