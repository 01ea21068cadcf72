"""Loads what needs the driver of PostgreSQL, which is not installed with treedb alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from treedbd.cli.exit import CommandFailed
from treedbd.files import read_installation

_DRIVER: Final = "psycopg"


def load_with_driver(module: str) -> Any:
    """Import a module of `treedbd` that needs the driver; raise `CommandFailed` without it."""
    try:
        import_module(_DRIVER)
    except ImportError:  # or the library of PostgreSQL is missing, which it needs
        raise CommandFailed(
            "The driver of PostgreSQL is not installed: run "
            f"{read_installation().line_for('postgresql')}."
        ) from None
    return import_module(module)
