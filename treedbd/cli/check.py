"""`treedb check` and `treedb compact`: read all files of databases, or make them smaller.

*Check* reads every file of the data directory and reports its errors. The directory is locked, so
no daemon may be running. The write-ahead log of a crashed daemon is checkpointed first, as at every
start; nothing else is changed. A file of an older format is checked, but not converted.

*Compact* returns the space of removed data to the file system. With a URL the daemon compacts one
database while it serves it: reads go on, writes wait. Without a URL all databases of a data
directory are compacted, by its daemon if one is running: the lock file has its URLs, the settings
its secrets.
"""

from __future__ import annotations

import contextlib
import pathlib
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from itertools import islice

import attrs

from treedbd.cli.exit import DONE, FAILED, CommandFailed, Status, make_printable, print_line, warn
from treedbd.cli.http_client import (
    HttpClient,
    add_online_options,
    parse_json,
    reading_answer,
    run_once,
)
from treedbd.cli.options import (
    Url,
    add_settings_options,
    choose_authorities,
    parse_address,
    parse_url,
    read_settings,
    read_stored_settings,
)
from treedbd.cli.token import mint_admin
from treedbd.config.settings import Settings
from treedbd.database.data_directory import DirectoryEntry, walk
from treedbd.limits import RulesLimits
from treedbd.names import DatabaseName
from treedbd.rules.document import InvalidRules, with_hint
from treedbd.rules.ruleset import parse_rules
from treedbd.store import changelog
from treedbd.store.directory_lock import DirectoryLock, read_urls
from treedbd.store.engine import CannotOpenStore, DiskFull, ReadView, StoreFailed
from treedbd.store.sqlite.convert import check_older, find_room
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import OlderFormat
from treedbd.store.verify import MAX_FINDINGS, verify, verify_indexes

TIMEOUT: str = "15min"


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_settings_options(parser)
    parser.set_defaults(run=_check)


def _check(arguments: Namespace) -> Status:
    settings = read_stored_settings(arguments, "checked")
    with contextlib.ExitStack() as locks:
        try:
            locks.callback(DirectoryLock(settings.data).release)
            entries = walk(settings.data, settings.projects)
            are_sound = [
                _report(_name(each), _check_entry(each, settings.rules)) for each in entries
            ]
        except CannotOpenStore as error:
            raise CommandFailed(str(error)) from None
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
    """Return one sentence for each error in the file of a database."""
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
            engine.record_damage()  # so the next start checks it too
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
    """Print the findings in one file; return whether it is sound."""
    lines = findings or ["ok"]
    if len(findings) >= MAX_FINDINGS:
        lines = [*lines, f"There may be more; the first {MAX_FINDINGS} are shown."]
    for line in lines:
        print_line(make_printable(f"{name}: {line}"))
    return not findings


def add_compact_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "url",
        metavar="URL",
        type=parse_address,
        nargs="?",
        help="a database that a daemon serves (default: all of the data directory)",
    )
    add_online_options(parser, _compact_served)
    parser.set_defaults(run=_run, silence_s=None)  # nothing is sent before all is done


def _run(arguments: Namespace) -> Status:
    if arguments.url is not None:
        return run_once(arguments)
    settings = read_stored_settings(arguments, "compacted")
    try:
        lock = DirectoryLock(settings.data)
    except CannotOpenStore as error:
        targets = _targets(settings)
        if not targets:
            raise CommandFailed(
                f"{str(error).rstrip('.')}, or give the URL of a database: its daemon does it."
            ) from None
        arguments.url = targets[0].url
        arguments.request = partial(_compact_targets, targets=targets)
        return run_once(arguments)
    try:
        return _compact_files(settings, lock)
    except DiskFull as error:
        raise CommandFailed(str(error)) from None
    finally:
        lock.release()


def _compact_served(client: HttpClient, arguments: Namespace) -> None:
    _compact_one(client, arguments.url, str(arguments.url))


def _compact_one(client: HttpClient, url: Url, name: str) -> None:
    address = url.to_settings("compact.json").with_parameters({"timeout": TIMEOUT})
    found = parse_json(client.request("POST", address).content(), address)
    with reading_answer(address):
        _report_freed(name, found["before"], found["after"])


@attrs.frozen
class _Served:
    """A database of a directory that a daemon serves, and an admin's token for it."""

    name: str
    url: Url
    token: str


def _targets(settings: Settings) -> list[_Served]:
    """Return the databases of a directory that a daemon serves; none if its URLs are unknown."""
    urls = [parse_url(each) for each in read_urls(settings.data)]
    if not urls:
        return []
    found = []
    for entry in walk(settings.data, settings.projects):
        if entry.is_shelf and entry.error is None:
            label = DatabaseName(entry.project, entry.file.stem).label
            url = _address(urls, settings.domains, label)
            token = mint_admin(settings, entry.project)
            found.append(_Served(f"{entry.project}/{entry.file.name}", url, token))
    return found


def _address(urls: Sequence[Url], domains: Sequence[str], label: str) -> Url:
    """Return the URL of a database: at the address of this machine, or at its host if all use TLS.

    A certificate is for the hosts that name databases, not for the address of this machine.
    """
    plain = next((each for each in urls if not each.is_secure), None)
    if plain is None and domains:
        return attrs.evolve(urls[0], host=f"{label}.{domains[0]}")
    return (plain or urls[0]).with_parameters({"ns": label})


def _compact_targets(_: HttpClient, arguments: Namespace, targets: Sequence[_Served]) -> None:
    settings = read_settings(arguments)
    for target in targets:
        authorities = choose_authorities(arguments, target.url, settings)
        _compact_one(HttpClient(authorities, target.token), target.url, target.name)


def _compact_files(settings: Settings, lock: DirectoryLock) -> Status:
    """Compact all sound databases; report the others."""
    status = DONE
    for entry in walk(settings.data, settings.projects):
        name = f"{entry.project}/{entry.file.name}"
        if entry.error is not None:
            problem: str | None = str(entry.error)
        elif entry.is_shelf:
            problem = _compact_file(name, entry.file, lock)
        else:
            continue
        if problem is not None:
            warn(f"{name} is not compacted: {problem}")
            status = FAILED
    return status


def _compact_file(name: str, file: pathlib.Path, lock: DirectoryLock) -> str | None:
    """Compact a file; return why it cannot be compacted, None if it was. Raises `DiskFull`."""
    try:
        with contextlib.closing(SqliteEngine.open(file, lock=lock)) as engine:
            if findings := engine.verify():  # compacting would hide a damaged index
                return findings[0]
            before = engine.size()
            engine.compact()
            _report_freed(name, before, engine.size())
    except (CannotOpenStore, StoreFailed) as error:
        return str(error)
    return None


def _report_freed(name: str, before: int, after: int) -> None:
    print_line(make_printable(f"{name}: {before:,} bytes, now {after:,}."))
