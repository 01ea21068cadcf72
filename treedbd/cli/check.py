"""`treedb check`: reads all that lies in the data directory, and says what is damaged.

No daemon may be running meanwhile: the directory is locked. A log that a daemon left behind when it
died is folded first, as every start does it; else nothing is changed.
"""

from __future__ import annotations

import pathlib
from argparse import Namespace
from typing import Any

from treedbd.cli.options import read_settings, settings_options
from treedbd.cli.outcome import DONE, CommandFailed, Status, print_line, printable
from treedbd.database.directory import Entry, walk
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import parse_rules
from treedbd.store import changelog
from treedbd.store.lock import DirectoryLock
from treedbd.store.mapping import Failed, Refused, Rows
from treedbd.store.sqlite import SqliteMapping
from treedbd.store.verification import MAX_FINDINGS, verify


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    check = commands.add_parser(
        "check",
        help="read the whole store and say what is damaged",
        parents=[settings_options()],
    )
    check.set_defaults(run=_check)


def _check(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    if settings.engine == "memory":
        raise CommandFailed("The memory engine keeps nothing that could be checked.")
    if not settings.data.is_dir():
        raise CommandFailed(
            f"There is no data directory {settings.data}: name the configuration with --config."
        )
    try:
        lock = DirectoryLock(settings.data)
    except Refused as error:
        raise CommandFailed(str(error)) from None
    try:
        entries = walk(settings.data, settings.projects)
        limits = settings.rules.limits()
        verdicts = [_report(_name(each), _look_at(each, limits)) for each in entries]
    except Refused as error:
        raise CommandFailed(str(error)) from None
    finally:
        lock.release()
    bad = verdicts.count(False)
    if bad:
        verb = "is" if bad == 1 else "are"
        raise CommandFailed(
            f"{bad} of the {len(verdicts)} files in {settings.data} {verb} not in order."
        )
    return DONE


def _name(entry: Entry) -> str:
    is_project = entry.place.name == entry.project
    return entry.project if is_project else f"{entry.project}/{entry.place.name}"


def _look_at(entry: Entry, limits: RulesLimits) -> list[str]:
    if entry.trouble is not None:
        return [entry.trouble]
    return check_file(entry.place) if entry.is_shelf else _check_rules(entry.place, limits)


def check_file(file: pathlib.Path) -> list[str]:
    """Return what is wrong with the file of a database, a sentence each."""
    try:
        mapping = SqliteMapping.open(file)
    except Refused as error:
        return [str(error)]
    except OSError as error:
        return [f"It cannot be opened ({error.strerror})."]
    findings = mapping.verify()
    try:
        findings += mapping.read(_check_rows)
    except Failed as error:
        findings.append(f"Not all of it can be read: {error}.")
    finally:
        mapping.close()
    return findings


def _check_rows(rows: Rows) -> list[str]:
    findings = verify(rows)
    for entry in rows.entries(0):
        try:
            changelog.decode(entry.content)
        except ValueError:
            findings.append(f"Entry {entry.sequence} of the change log cannot be read.")
    return findings


def _check_rules(file: pathlib.Path, limits: RulesLimits) -> list[str]:
    try:
        parse_rules(file.read_bytes(), limits)
    except OSError as error:
        return [f"The rules cannot be read ({error.strerror})."]
    except InvalidRules as error:
        return [f"The rules are no good: {error}"]
    return []


def _report(name: str, findings: list[str]) -> bool:
    """Print what was found in one file; tell whether it is sound."""
    if not findings:
        print_line(printable(f"{name}: ok"))
    for finding in findings:
        print_line(printable(f"{name}: {finding}"))
    if len(findings) >= MAX_FINDINGS:
        print_line(printable(f"{name}: There may be more; {MAX_FINDINGS} are shown."))
    return not findings
