"""The settings of the daemon, read from a TOML file and from flags.

The records below, and those of `limits`, are the table of keys: a field is a key of the same name,
with its default and its reader; a new key is one new field. Flags override the file, the file
overrides the defaults. A bad setting is a `ConfigError` that names the file, the key and the
remedy. The configuration file itself is the only file that is opened here.
"""

from __future__ import annotations

import os
import pathlib
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from treedbd.config.endpoints import Endpoint, InvalidEndpoint, parse_endpoint
from treedbd.config.provider_settings import ProviderSettings, provider_list
from treedbd.config.values import (
    ConfigError,
    SettingLocation,
    boolean,
    file,
    files,
    folder,
    integer,
    items,
    key,
    one_of,
    read_table,
    seconds,
    table,
    text,
    texts,
)
from treedbd.limits import (
    DEFAULT_PROJECT_DATABASES,
    MAX_LABEL_CHARACTERS,
    Limits,
    RulesLimits,
    StreamLimits,
)
from treedbd.names import (
    DEFAULT_DATABASE,
    DialectName,
    ReadsName,
    parse_label,
)

DEVELOPMENT_PROJECT: Final = "demo"
DEVELOPMENT_DATA: Final = "treedb-data"
DEVELOPMENT_LISTEN: Final = ("ssl:8443:interface=127.0.0.1", "tcp:9000:interface=127.0.0.1")
COMMAND_LINE: Final = "the command line"
DEVELOPMENT_MODE: Final = "development mode"
MAX_WORKERS: Final = 64
ENGINES: Final = ("sqlite", "memory")
POSTGRESQL_SCHEMES: Final = ("postgresql://", "postgres://")
_SET_BY_PROGRAM: Final = SettingLocation("the settings", pathlib.Path())

_DOMAIN: Final = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
)
_ORIGIN: Final = r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+"


def _domains(raw: object, location: SettingLocation) -> tuple[str, ...]:
    names = texts(_DOMAIN, 'host names like "db.example.com"')(raw, location)
    return tuple(name.lower() for name in names)


def _endpoints(raw: object, location: SettingLocation) -> tuple[Endpoint, ...]:
    endpoints = []
    for each in items(raw, location):
        try:
            endpoints.append(parse_endpoint(text(each, location), location.folder))
        except InvalidEndpoint as error:
            raise location.error(f"holds a bad endpoint ({error})") from None
    return tuple(endpoints)


def _databases(raw: object, location: SettingLocation) -> frozenset[str] | None:
    if raw == "*":
        return None
    names = [text(each, location) for each in items(raw, location)]
    project = location.key.split(".")[1]
    for name in names:
        _check_label(name, f"{name}--{project}", location)
    return frozenset(names)


def _default_project(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if name:
        _check_label(name, name, location)
    return name


def _check_label(name: str, label: str, location: SettingLocation) -> None:
    parsed = parse_label(label)
    if parsed is None or "--" in name or name != name.lower():
        raise location.error(
            f'holds "{name}", which is not a name',
            "use a-z, 0-9 and single hyphens between them; a label <database>--<project> has at "
            f"most {MAX_LABEL_CHARACTERS} characters",
        )


def _engine(raw: object, location: SettingLocation) -> str:
    engine = text(raw, location)
    if engine.startswith(POSTGRESQL_SCHEMES):
        if "@" in engine and ":" in engine.partition("//")[2].rpartition("@")[0]:
            raise location.error(
                "holds a password",
                "put it into the file that PGPASSFILE names, or into a service file",
            )
        return engine
    if engine not in ENGINES:
        raise location.error("must be sqlite, memory, or a URL postgresql://…")
    return engine


def _workers(raw: object, location: SettingLocation) -> int:
    if raw == "auto":
        return min(_cores(), MAX_WORKERS)
    if isinstance(raw, str):
        raise location.error(f'must be an integer from 1 to {MAX_WORKERS}, or "auto"')
    return integer(1, MAX_WORKERS)(raw, location)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@attrs.frozen
class HttpSettings:
    """`[http]`: header names and origins of clients, the access log, compressed responses."""

    etag_headers: tuple[str, ...] = key(
        ("Vendor", "Firebase", "TreeDB"),
        texts(r"[A-Za-z0-9-]+", 'parts of header names like "Vendor"'),
    )
    cors_origins: tuple[str, ...] = key(
        ("*",), texts(_ORIGIN, 'origins like "https://app.example.com", or "*"')
    )
    access_log: bool = key(False, boolean)
    compression: bool = key(True, boolean)


@attrs.frozen
class ProjectSettings:
    """`[projects.<name>]`; `databases` is None if any may be created, up to `databases_max`."""

    databases: frozenset[str] | None = key(frozenset({DEFAULT_DATABASE}), _databases)
    dialect: DialectName = key("auto", one_of("auto", "standard", "firebase"))
    require_index: bool = key(False, boolean)
    secret_files: tuple[pathlib.Path, ...] = key((), files)
    rules_file: pathlib.Path | None = key(None, file)
    providers: tuple[ProviderSettings, ...] = key((), provider_list)
    max_token_life_s: float | None = key(None, seconds(10 * 365 * 86_400))
    databases_max: int = key(DEFAULT_PROJECT_DATABASES, integer(1, 1_000_000))


def _projects(raw: object, location: SettingLocation) -> Mapping[str, ProjectSettings]:
    if not isinstance(raw, dict):
        raise location.error("must hold a table for each project, [projects.<name>]")
    projects = {}
    for name, content in raw.items():
        _check_label(name, name, location)
        projects[name] = table(ProjectSettings)(content, location.at(name))
    return MappingProxyType(projects)


@attrs.frozen
class Settings:
    """All settings.

    The last four are not keys. `development` is development mode, which has no file; `accept_loss`
    serves databases from which changes are missing, this time only; `location` and
    `listen_location` are where the settings come from, for errors in files that they name.
    """

    listen: tuple[Endpoint, ...] = key((), _endpoints)
    domains: tuple[str, ...] = key((), _domains)
    default_project: str = key("", _default_project)
    data: pathlib.Path = key(pathlib.Path("/var/lib/treedb"), folder)
    engine: str = key("sqlite", _engine)
    reads: ReadsName = key("strict", one_of("strict", "local"))
    workers: int = key(1, _workers)
    emulator: bool = key(False, boolean)
    limits: Limits = key(Limits(), table(Limits))
    streams: StreamLimits = key(StreamLimits(), table(StreamLimits))
    http: HttpSettings = key(HttpSettings(), table(HttpSettings))
    rules: RulesLimits = key(RulesLimits(), table(RulesLimits))
    projects: Mapping[str, ProjectSettings] = key(MappingProxyType({}), _projects)
    development: bool = False
    accept_loss: bool = False
    location: SettingLocation = attrs.field(default=_SET_BY_PROGRAM, eq=False)
    listen_location: SettingLocation = attrs.field(default=_SET_BY_PROGRAM.at("listen"), eq=False)

    @property
    def is_cluster(self) -> bool:
        """Whether the data is in PostgreSQL, and other daemons may serve it too."""
        return self.engine.startswith(POSTGRESQL_SCHEMES)

    def location_of(self, project: str) -> SettingLocation:
        """Return the location of the keys of a project."""
        return self.location.at("projects").at(project)


def load_settings(
    file: pathlib.Path | None,
    flags: Mapping[str, object],
    folder: pathlib.Path,
    content: bytes | None = None,
) -> Settings:
    """Read `file`, or return development mode's settings for None; `flags` override both.

    `folder` is the working directory, from which relative paths of flags, and of `file` itself,
    start. `content` is what the file holds, if it was read before. Raises `ConfigError`.
    """
    command_line = SettingLocation(COMMAND_LINE, folder)
    overrides = read_table(Settings, flags, command_line)
    if file is None:
        location = SettingLocation(DEVELOPMENT_MODE, folder)
        settings = attrs.evolve(_development(folder), **overrides)
    else:
        location = SettingLocation(str(file), (folder / file).absolute().parent)
        values = read_table(Settings, _parse(file, folder, content), location)
        settings = Settings(**{**values, **overrides})
    listen_location = (command_line if "listen" in overrides else location).at("listen")
    settings = attrs.evolve(settings, location=location, listen_location=listen_location)
    _check(settings)
    return settings


def _development(folder: pathlib.Path) -> Settings:
    return Settings(
        listen=tuple(parse_endpoint(each, folder) for each in DEVELOPMENT_LISTEN),
        domains=("localhost",),
        default_project=DEVELOPMENT_PROJECT,
        data=folder / DEVELOPMENT_DATA,
        emulator=True,
        projects=MappingProxyType({DEVELOPMENT_PROJECT: ProjectSettings(databases=None)}),
        development=True,
    )


def _parse(file: pathlib.Path, folder: pathlib.Path, content: bytes | None) -> dict[str, object]:
    try:
        if content is None:
            content = (folder / file).read_bytes()
        return tomllib.loads(content.decode())
    except OSError as error:
        problem, remedy = f"cannot be read ({error.strerror})", "choose another file with --config"
    except UnicodeDecodeError:
        problem, remedy = "is not UTF-8", "save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        problem, remedy = f"is not TOML ({error})", "correct it there"
    raise ConfigError(f"{file}:", problem, remedy)


def _check(settings: Settings) -> None:
    """Raise `ConfigError` for settings that contradict each other."""
    default = settings.default_project
    if default and default not in settings.projects:
        raise settings.location.at("default_project").error(
            f'names "{default}", which is not configured', f"add [projects.{default}] or remove it"
        )
    if settings.workers > 1 and settings.engine == "memory":
        raise settings.location.at("workers").error(
            f"is {settings.workers}, but what is in memory cannot be shared",
            'set workers = 1, or engine = "sqlite"',
        )
    _check_cluster(settings)
    for endpoint in settings.listen:
        if settings.emulator and not endpoint.is_loopback:
            raise settings.listen_location.error(
                f"opens {endpoint.text} to other machines, which emulator mode does not allow",
                "add interface=127.0.0.1, or set emulator = false in a file for --config",
            )
        if endpoint.is_secure and endpoint.certificate is None and not settings.development:
            raise settings.listen_location.error(
                f"has no certificate for {endpoint.text}", "add privateKey= and certKey="
            )


def _check_cluster(settings: Settings) -> None:
    """Raise `ConfigError` for settings that contradict the engine PostgreSQL, or lack it."""
    if settings.workers > 1 and settings.is_cluster:
        raise settings.location.at("workers").error(
            f"is {settings.workers}, but a daemon over PostgreSQL is one process",
            "set workers = 1, and start a daemon for each core",
        )
    if settings.reads != "strict" and not settings.is_cluster:
        raise settings.location.at("reads").error(
            f'is "{settings.reads}", but only reads over PostgreSQL may be late',
            'set reads = "strict", or a URL postgresql://… as engine',
        )
