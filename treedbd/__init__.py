"""treedb: a self-hosted JSON tree database, one Twisted daemon over HTTPS.

What programs may import is here: `open_shelf` and `Shelf` to use the file of a database as a
mapping, `TreeService` with its settings to embed the daemon. Each is imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from treedbd.version import __version__

TYPE_CHECKING = False  # not that of `typing`: `treedb --version` is faster without it
if TYPE_CHECKING:
    from treedbd.config.settings import ProjectSettings, Settings, load_settings
    from treedbd.config.values import ConfigError
    from treedbd.limits import Limits, RulesLimits, StreamLimits
    from treedbd.listening import CannotStart
    from treedbd.service import TreeService
    from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
    from treedbd.store.shelf import Shelf, open_shelf
    from treedbd.store.shelf_stores import ReadOnlyShelf
    from treedbd.tree.errors import InvalidData, InvalidPath

__all__ = [
    "CannotOpenStore",
    "CannotStart",
    "ConfigError",
    "DiskFull",
    "InvalidData",
    "InvalidPath",
    "Limits",
    "ProjectSettings",
    "ReadOnlyShelf",
    "RulesLimits",
    "Settings",
    "Shelf",
    "StoreFailed",
    "StreamLimits",
    "TreeService",
    "__version__",
    "load_settings",
    "open_shelf",
]

_MODULES = {
    "CannotOpenStore": "store.engine",
    "CannotStart": "listening",
    "ConfigError": "config.values",
    "DiskFull": "store.engine",
    "InvalidData": "tree.errors",
    "InvalidPath": "tree.errors",
    "Limits": "limits",
    "ProjectSettings": "config.settings",
    "ReadOnlyShelf": "store.shelf_stores",
    "RulesLimits": "limits",
    "Settings": "config.settings",
    "Shelf": "store.shelf",
    "StoreFailed": "store.engine",
    "StreamLimits": "limits",
    "TreeService": "service",
    "load_settings": "config.settings",
    "open_shelf": "store.shelf",
}


def __getattr__(name: str) -> object:
    """Import a name on its first use (PEP 562): most programs need one of them, not all."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
