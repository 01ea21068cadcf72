"""The manifest of a backup: which files it has, and how each can be recognised."""

from __future__ import annotations

import pathlib
import re
from typing import Any, Final

import attrs
import orjson
from attrs.validators import deep_iterable, ge, instance_of, le, matches_re, optional

from treedbd import __version__
from treedbd.cli.exit import CommandFailed, make_printable
from treedbd.database.data_directory import RULES_FILE, SHELF
from treedbd.files import write_atomically

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1


_MAX_SEQUENCE: Final = 2**63 - 1
_NAME: Final = re.compile(r"(?!\.)[^/\x00-\x1f\x7f]{1,255}")
"""A name of a file or directory: neither hidden, nor `..`, nor a path."""
_OWN_FILES: Final = "treedb."
"""What files begin with that a daemon has in a data directory."""


class _WrongName(Exception):
    """The path of a file that no backup has."""


def _check_path(saved: SavedFile, _: object, path: str) -> None:
    project, _, name = path.partition("/")
    is_rules = name == RULES_FILE and saved.sequence is None
    is_database = name.endswith(SHELF) and name != SHELF and saved.sequence is not None
    is_safe = bool(_NAME.fullmatch(project) and _NAME.fullmatch(name))
    is_safe = is_safe and not project.startswith(_OWN_FILES)
    if not (is_safe and (is_rules or is_database)):
        raise _WrongName(make_printable(path[:100]))


@attrs.frozen
class SavedFile:
    """One file of a backup, whose `path` is `<project>/<file>`.

    `sequence` and `op_id` (hexadecimal digits) are those of a database, None for rules.
    """

    path: str = attrs.field(validator=[instance_of(str), _check_path])
    size: int = attrs.field(validator=[instance_of(int), ge(0)])
    sha256: str = attrs.field(validator=matches_re("[0-9a-f]{64}"))
    sequence: int | None = attrs.field(
        default=None, validator=optional([instance_of(int), ge(0), le(_MAX_SEQUENCE)])
    )
    op_id: str | None = attrs.field(default=None, validator=optional(matches_re("([0-9a-f]{2})*")))


@attrs.frozen
class Manifest:
    """A complete backup: when it was made (ISO 8601), and its files."""

    time: str = attrs.field(validator=instance_of(str))
    files: tuple[SavedFile, ...] = attrs.field()
    skipped: tuple[str, ...] = attrs.field(default=(), validator=deep_iterable(instance_of(str)))

    @files.validator
    def _check_files(self, _: object, files: tuple[SavedFile, ...]) -> None:
        if len({each.path for each in files}) < len(files):
            raise ValueError("a file is named twice")

    def write(self, folder: pathlib.Path) -> None:
        """Write it durably; from then on the backup counts as complete. Raises OSError."""
        content = {"format": FORMAT, "treedb": __version__, **attrs.asdict(self)}
        write_atomically(folder / MANIFEST, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_manifest(folder: pathlib.Path) -> Manifest:
    """Return the manifest of a backup, which may be any file; raise `CommandFailed`.

    Nothing in it leads anywhere but to the files that a backup has.
    """
    file = folder / MANIFEST
    try:
        if not file.is_file():
            raise CommandFailed(f"{folder} is not a complete backup: it has no {MANIFEST}.")
        content: Any = orjson.loads(file.read_bytes())
        if content["format"] != FORMAT:
            raise CommandFailed(f"{file} is of a newer version of treedb: use that version.")
        files = tuple(SavedFile(**each) for each in content["files"])
        return Manifest(content["time"], files, tuple(content.get("skipped", ())))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    except _WrongName as error:
        raise CommandFailed(
            f"{file} names a file that no backup has ({error}): use another backup."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CommandFailed(f"{file} is damaged: use another backup.") from None
