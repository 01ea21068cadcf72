"""`treedb check`: reads every file of the data directory and reports what is wrong with it.

The directory is locked, so no daemon may be running. A write-ahead log that a crashed daemon has
left is checkpointed first, as every start does; nothing else is changed. A file of an older format
is checked, and not converted.
"""

from __future__ import annotations

import pathlib
from argparse import ArgumentParser, Namespace
from itertools import islice

from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, print_line
from treedbd.cli.options import add_settings_options, read_stored_settings
from treedbd.database.data_directory import DirectoryEntry, walk
from treedbd.limits import RulesLimits
from treedbd.rules.document import InvalidRules, with_hint
from treedbd.rules.ruleset import parse_rules
from treedbd.store import changelog
from treedbd.store.engine import CannotOpenStore, ReadView, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.convert import check_older, find_room
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import OlderFormat
from treedbd.store.verify import MAX_FINDINGS, verify, verify_indexes


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_settings_options(parser)
    parser.set_defaults(run=_check)


def _check(arguments: Namespace) -> Status:
    settings = read_stored_settings(arguments, "checked")
    try:
        lock = DirectoryLock(settings.data)
    except CannotOpenStore as error:
        raise CommandFailed(str(error)) from None
    try:
        entries = walk(settings.data, settings.projects)
        are_sound = [_report(_name(each), _check_entry(each, settings.rules)) for each in entries]
    except CannotOpenStore as error:
        raise CommandFailed(str(error)) from None
    finally:
        lock.release()
    bad = are_sound.count(False)
    if bad:
        verb = "has" if bad == 1 else "have"
        raise CommandFailed(f"{bad} of {len(are_sound)} files in {settings.data} {verb} errors.")
    return DONE


def _name(entry: DirectoryEntry) -> str:
    is_project = entry.file.name == entry.project
    return entry.project if is_project else f"{entry.project}/{entry.file.name}"


def _check_entry(entry: DirectoryEntry, limits: RulesLimits) -> list[str]:
    if entry.error is not None:
        return [str(entry.error)]
    return verify_file(entry.file) if entry.is_shelf else _check_rules(entry.file, limits)


def verify_file(file: pathlib.Path) -> list[str]:
    """Return one sentence for each thing that is wrong with the file of a database."""
    try:
        engine = SqliteEngine.open(file)
    except OlderFormat as error:
        note = f"Note: {file} has format {error.version}; the next start converts it."
        print_line(make_printable(note))
        return [*check_older(file, error.version), *_check_room(file)]
    except CannotOpenStore as error:
        return [str(error)]
    except OSError as error:
        return [f"The file cannot be opened ({error.strerror})."]
    if engine.warning is not None:
        print_line(make_printable(f"Warning: {engine.warning}"))
    findings = engine.verify()
    try:
        findings += engine.read(_check_rows)
    except StoreFailed as error:
        findings.append(f"Parts of the database cannot be read: {error}.")
    finally:
        if findings:
            engine.record_damage()  # so the next start looks for it, too
        engine.close()
    return findings


def _check_room(file: pathlib.Path) -> list[str]:
    needed, free = find_room(file)
    if free >= needed:
        return []
    return [f"It cannot be converted: {needed:,} bytes are needed beside it, {free:,} are free."]


def _check_rows(rows: ReadView) -> list[str]:
    findings = verify(rows)
    findings += islice(verify_indexes(rows), MAX_FINDINGS)
    for entry in rows.entries(0):
        try:
            changelog.decode(entry.content)
        except ValueError:
            findings.append(f"Entry {entry.sequence} of the change log is not valid.")
    return findings


def _check_rules(file: pathlib.Path, limits: RulesLimits) -> list[str]:
    try:
        parse_rules(file.read_bytes(), limits)
    except OSError as error:
        return [f"The rules cannot be read ({error.strerror})."]
    except InvalidRules as error:
        return [f"The rules are not valid: {with_hint(error)}"]
    return []


def _report(name: str, findings: list[str]) -> bool:
    """Print what was found in one file; return whether it is sound."""
    if not findings:
        print_line(make_printable(f"{name}: ok"))
    for finding in findings:
        print_line(make_printable(f"{name}: {finding}"))
    if len(findings) >= MAX_FINDINGS:
        print_line(
            make_printable(f"{name}: There may be more; the first {MAX_FINDINGS} are shown.")
        )
    return not findings
