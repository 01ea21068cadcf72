"""The manifest of a backup: which files it has, and how each can be recognised."""

from __future__ import annotations

import pathlib
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.files import write_atomically
from treedbd.version import __version__

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1


@attrs.frozen
class SavedFile:
    """One file of a backup; `path` is relative, `sequence` and `op_id` are those of a database."""

    path: str
    size: int
    sha256: str
    sequence: int | None = None
    op_id: str | None = None


@attrs.frozen
class Manifest:
    """A complete backup: when it was made (ISO 8601), and its files."""

    time: str
    files: tuple[SavedFile, ...]
    skipped: tuple[str, ...] = ()

    def write(self, folder: pathlib.Path) -> None:
        """Write it durably; from then on the backup counts as complete. Raises OSError."""
        content = {"format": FORMAT, "treedb": __version__, **attrs.asdict(self)}
        write_atomically(folder / MANIFEST, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_manifest(folder: pathlib.Path) -> Manifest:
    """Return the manifest of a backup; raise `CommandFailed`."""
    file = folder / MANIFEST
    try:
        content: Any = orjson.loads(file.read_bytes())
        if content["format"] != FORMAT:
            raise CommandFailed(f"{file} is of a newer version of treedb: use that version.")
        files = tuple(SavedFile(**each) for each in content["files"])
        if not all(_is_inside(each.path) for each in files):
            raise ValueError("A path leads out of the folder.")
        return Manifest(content["time"], files, tuple(content.get("skipped", ())))
    except FileNotFoundError:
        raise CommandFailed(f"{folder} is not a complete backup: it has no {MANIFEST}.") from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CommandFailed(f"{file} is damaged: use another backup.") from None


def _is_inside(path: str) -> bool:
    parts = pathlib.PurePosixPath(path).parts
    return len(parts) == 2 and not any(part in ("..", "/") for part in parts)
