"""The settings of the daemon, read from a TOML file and from flags.

The records below, and those of `limits`, are the table of keys: a field is a key of the same name,
with its default and its reader; a new key is one new field. Flags override the file, the file
overrides the defaults. A bad setting is a `ConfigError` that names the file, the key and the
remedy. The configuration file itself is the only file that is opened here.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from treedbd.config.endpoints import Endpoint, InvalidEndpoint, parse_endpoint
from treedbd.config.engine_settings import POSTGRESQL_SCHEMES, read_engine, read_workers
from treedbd.config.http_settings import HttpSettings, read_page_origins
from treedbd.config.local_network import LocalNetwork
from treedbd.config.log_settings import LogSettings
from treedbd.config.project_settings import ProjectSettings, check_label, read_projects
from treedbd.config.realtime_settings import RealtimeSettings
from treedbd.config.tracing_settings import TracingSettings
from treedbd.config.values import (
    ConfigError,
    SettingLocation,
    as_read,
    boolean,
    folder,
    items,
    key,
    one_of,
    read_table,
    table,
    text,
    texts,
)
from treedbd.limits import Limits, RateLimits, RulesLimits, StreamLimits
from treedbd.names import NO_PROXIES, InvalidProxy, ReadsName, TrustedProxies, parse_trusted_proxies

DEVELOPMENT_PROJECT: Final = "demo"
DEVELOPMENT_DATA: Final = "treedb-data"
DEVELOPMENT_LISTEN: Final = ("ssl:8443:interface=127.0.0.1", "tcp:9000:interface=127.0.0.1")
LAN_LISTEN: Final = ("ssl:8443", "tcp:9000:interface=127.0.0.1")
COMMAND_LINE: Final = "the command line"
DEVELOPMENT_MODE: Final = "development mode"
THE_SETTINGS: Final = "the settings"
_SET_BY_PROGRAM: Final = SettingLocation(THE_SETTINGS, pathlib.Path())

DOMAIN: Final = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
)


def _domains(raw: object, location: SettingLocation) -> tuple[str, ...]:
    names = texts(DOMAIN, 'host names like "db.example.com"')(raw, location)
    return tuple(name.lower() for name in names)


def _endpoints(raw: object, location: SettingLocation) -> tuple[Endpoint, ...]:
    endpoints = []
    for each in items(raw, location):
        try:
            endpoints.append(parse_endpoint(text(each, location), location.folder))
        except InvalidEndpoint as error:
            raise location.error(f"holds a bad endpoint ({error})") from None
    return tuple(endpoints)


def _trusted_proxies(raw: object, location: SettingLocation) -> TrustedProxies:
    try:
        return parse_trusted_proxies(text(each, location) for each in items(raw, location))
    except InvalidProxy as error:
        raise location.error(f"holds a bad entry ({error})") from None


def _default_project(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if name:
        check_label(name, name, location)
    return name


@attrs.frozen
class Settings:
    """The settings of a `TreeService`: what the configuration file of the daemon says.

    `Settings.from_values` makes them of plain values, `load_settings` of a file; both check them
    and raise `ConfigError`. Made directly, with fields of the types below, they are not checked.
    The fields have the names, units and defaults of the keys, which `treedb init --print
    treedb.toml` explains: `listen` is empty for a service that is mounted in a site of yours,
    `data` is the folder of the databases, `engine="memory"` keeps nothing, `projects` has a
    `ProjectSettings` for each project.

    The last six are not keys, and a program leaves them alone: `development` is development mode,
    which has no file, and logs each request unless it is `quiet`; with `network` it is for other
    machines too. `accept_loss` serves databases from which changes are missing, this time only.
    `location` and `listen_location` are where the settings come from, for the text of errors.
    """

    listen: tuple[Endpoint, ...] = key((), _endpoints)
    domains: tuple[str, ...] = key((), _domains)
    trusted_proxies: TrustedProxies = key(NO_PROXIES, _trusted_proxies)
    default_project: str = key("", _default_project)
    data: pathlib.Path = key(pathlib.Path("/var/lib/treedb"), folder)
    engine: str = key("sqlite", read_engine)
    reads: ReadsName = key("strict", one_of("strict", "local"))
    workers: int = key(1, read_workers)
    ops_listen: tuple[Endpoint, ...] = key((), _endpoints)
    emulator: bool = key(False, boolean)
    limits: Limits = key(Limits(), table(Limits))
    rates: RateLimits = key(RateLimits(), table(RateLimits))
    streams: StreamLimits = key(StreamLimits(), table(StreamLimits))
    http: HttpSettings = key(HttpSettings(), table(HttpSettings))
    log: LogSettings = key(LogSettings(), table(LogSettings))
    tracing: TracingSettings = key(TracingSettings(), table(TracingSettings))
    rules: RulesLimits = key(RulesLimits(), table(RulesLimits))
    realtime: RealtimeSettings = key(RealtimeSettings(), table(RealtimeSettings))
    projects: Mapping[str, ProjectSettings] = key(MappingProxyType({}), read_projects)
    development: bool = False
    quiet: bool = False
    network: LocalNetwork | None = None
    accept_loss: bool = False
    location: SettingLocation = attrs.field(default=_SET_BY_PROGRAM, eq=False)
    listen_location: SettingLocation = attrs.field(default=_SET_BY_PROGRAM.at("listen"), eq=False)

    @classmethod
    def from_values(cls, *, folder: pathlib.Path | str | None = None, **values: object) -> Settings:
        """Return settings from plain values: the keys and values of the configuration file.

        A table of the file is a dict:
        `from_values(data="data", projects={"app": {"rules_file": "rules.json"}})`.
        Relative paths start from `folder`, which is the working directory if it is None. Paths may
        be `pathlib.Path`, and lists tuples. Raises `ConfigError`, whose text is one sentence, for
        an unknown key or a value that is not possible.
        """
        location = SettingLocation(
            THE_SETTINGS, pathlib.Path.cwd() if folder is None else pathlib.Path(folder).absolute()
        )
        settings = cls(
            **read_table(cls, as_read(values), location),
            location=location,
            listen_location=location.at("listen"),
        )
        _check(settings)
        return settings

    @property
    def is_cluster(self) -> bool:
        """Whether the data is in PostgreSQL, and other daemons may serve it too."""
        return self.engine.startswith(POSTGRESQL_SCHEMES)

    def lets_others_reach(self, endpoint: Endpoint) -> bool:
        """Return whether an endpoint may be open to other machines; with `network`, by TLS only."""
        return not self.emulator and (self.network is None or endpoint.is_secure)

    @property
    def has_default_ports(self) -> bool:
        """Whether nobody has named an endpoint, so that others do as well."""
        return self.listen_location.source == DEVELOPMENT_MODE

    @property
    def ops_location(self) -> SettingLocation:
        """Where `ops_listen` comes from."""
        return self.location.at("ops_listen")

    def location_of(self, project: str) -> SettingLocation:
        """Return the location of the keys of a project."""
        return self.location.at("projects").at(project)


def load_settings(
    file: pathlib.Path | None,
    flags: Mapping[str, object],
    folder: pathlib.Path,
    content: bytes | None = None,
    network: LocalNetwork | None = None,
) -> Settings:
    """Read `file`, or return development mode's settings for None; `flags` override both.

    `folder` is the working directory, from which relative paths of flags, and of `file` itself,
    start; the flag `origin` adds to `http.cors_origins`. `content` is what the file holds, if it
    was read before. With `network` development mode is for other machines too. Raises
    `ConfigError`.
    """
    command_line = SettingLocation(COMMAND_LINE, folder)
    keys = {name: value for name, value in flags.items() if name != "origin"}
    overrides = read_table(Settings, keys, command_line)
    origins = read_page_origins(flags.get("origin", []), command_line.at("--origin"))
    if file is None:
        location = SettingLocation(DEVELOPMENT_MODE, folder)
        settings = attrs.evolve(_development(folder, network), **overrides)
    else:
        location = SettingLocation(str(file), (folder / file).absolute().parent)
        values = read_table(Settings, _parse(file, folder, content), location)
        settings = Settings(**{**values, **overrides})
    listen_location = (command_line if "listen" in overrides else location).at("listen")
    http = attrs.evolve(settings.http, cors_origins=(*settings.http.cors_origins, *origins))
    settings = attrs.evolve(settings, http=http, location=location, listen_location=listen_location)
    _check(settings)
    return settings


def _development(folder: pathlib.Path, network: LocalNetwork | None) -> Settings:
    listen = DEVELOPMENT_LISTEN if network is None else LAN_LISTEN
    return Settings(
        listen=tuple(parse_endpoint(each, folder) for each in listen),
        domains=("localhost",),
        default_project=DEVELOPMENT_PROJECT,
        data=folder / DEVELOPMENT_DATA,
        emulator=network is None,
        projects=MappingProxyType({DEVELOPMENT_PROJECT: ProjectSettings(databases=None)}),
        development=True,
        network=network,
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
            f'names "{default}", which is not configured',
            f"add {_name_of_table(settings, default)} or remove it",
        )
    if settings.workers > 1 and settings.engine == "memory":
        raise settings.location.at("workers").error(
            f"is {settings.workers}, but what is in memory cannot be shared",
            'set workers = 1, or engine = "sqlite"',
        )
    _check_cluster(settings)
    _check_proxies(settings)
    _check_log(settings)
    settings.tracing.check_libraries(settings.location.at("tracing"))
    _check_endpoints(settings, settings.listen, settings.listen_location)
    _check_endpoints(settings, settings.ops_listen, settings.ops_location)
    for endpoint in settings.ops_listen:
        if endpoint.is_proxied:
            raise settings.ops_location.error(
                f"holds {endpoint.text}, but operators are not served by way of haproxy:",
                "leave out haproxy:",
            )


def _check_endpoints(
    settings: Settings, endpoints: tuple[Endpoint, ...], location: SettingLocation
) -> None:
    """Raise `ConfigError` for an endpoint that is open to others, or lacks a certificate."""
    for endpoint in endpoints:
        is_near = endpoint.is_loopback or endpoint.is_passed  # whose address is checked later
        is_near = is_near and not (settings.emulator and endpoint.is_proxied)
        if not is_near and not settings.lets_others_reach(endpoint):
            raise open_to_others(settings, endpoint, location)
        if endpoint.is_secure and endpoint.certificate is None and not settings.development:
            raise location.error(
                f"has no certificate for {endpoint.text}", "add privateKey= and certKey="
            )


def open_to_others(
    settings: Settings, endpoint: Endpoint, location: SettingLocation
) -> ConfigError:
    """Return the error of an endpoint that other machines reach, where none may."""
    if settings.network is not None:
        return location.error(
            f"opens {endpoint.text} to other machines without TLS, which --lan does not allow",
            "add interface=127.0.0.1, or listen at an endpoint of ssl:",
        )
    mode, way = "emulator = true", "set emulator = false"
    if settings.development:
        mode, way = DEVELOPMENT_MODE, "use --lan"
    remedy = "add interface=127.0.0.1"
    if endpoint.is_proxied:  # a proxy is on this machine, but its clients need not be
        remedy = "leave out haproxy:"
    elif endpoint.is_passed:
        remedy = "let ListenStream= name 127.0.0.1"
    return location.error(
        f"opens {endpoint.text} to other machines, which {mode} does not allow",
        f"{remedy}, or {way}",
    )


def _check_log(settings: Settings) -> None:
    """Raise `ConfigError` for forms of lines that exclude each other."""
    if settings.http.access_log == "combined" and settings.log.format == "json":
        raise (
            settings.location.at("http")
            .at("access_log")
            .error(
                'is "combined", but with format = "json" in [log] each line is a JSON object',
                'set access_log = true, or format = "text"',
            )
        )


def _name_of_table(settings: Settings, project: str) -> str:
    """Return how the table of a project is written where the settings come from."""
    if settings.location.source == THE_SETTINGS:
        return f'projects["{project}"]'
    return f"[projects.{project}]"


def _check_proxies(settings: Settings) -> None:
    """Raise `ConfigError` for proxies in emulator mode, which is for this machine only."""
    if settings.emulator and settings.trusted_proxies:
        # Behind a proxy every client connects from this machine, and the admin's token is known.
        raise settings.location.at("trusted_proxies").error(
            "lets other machines in, which emulator = true does not allow",
            "remove it, or set emulator = false",
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
