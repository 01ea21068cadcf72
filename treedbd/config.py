"""What an operator can set: frozen settings, read from a TOML file and from flags.

The records below are the table of keys: a field is a key of the same name, with its default and the
function that reads its value; a new key is one new field. Flags win over the file, the file over
the defaults. Whatever is wrong becomes a `ConfigError`: one sentence that names the place, the key
and the remedy. Nothing is opened here but the file itself.
"""

from __future__ import annotations

import pathlib
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from treedbd.database.catalog import MOST_DATABASES, DialectChoice, EngineName
from treedbd.endpoints import Endpoint, InvalidEndpoint, parse_endpoint
from treedbd.keys import (
    ConfigError,
    Place,
    choice,
    file,
    files,
    folder,
    integer,
    items,
    key,
    read_fields,
    record,
    seconds,
    switch,
    text,
    texts,
)
from treedbd.rules.limits import MAX_NESTING, RulesLimits
from treedbd.web.channel.limits import MIB, ChannelLimits
from treedbd.web.identity.providers import AN_HTTPS_URL, AN_ISSUER, is_https, is_issuer
from treedbd.web.options import WebOptions
from treedbd.web.site import MAX_LABEL, parse_label
from treedbd.web.streams import StreamLimits

DEVELOPMENT_PROJECT: Final = "demo"
DEVELOPMENT_DATA: Final = "treedb-data"
DEVELOPMENT_LISTEN: Final = ("ssl:8443:interface=127.0.0.1", "tcp:9000:interface=127.0.0.1")
COMMAND_LINE: Final = "the command line"
DEVELOPMENT_MODE: Final = "development mode"
_BY_PROGRAM: Final = Place("the settings", pathlib.Path())

_DOMAIN: Final = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
)
_ORIGIN: Final = r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+"
_CHANNEL: Final = ChannelLimits()
_STREAMS: Final = StreamLimits()
_WEB: Final = WebOptions()
_RULES: Final = RulesLimits()


def _domains(raw: object, place: Place) -> tuple[str, ...]:
    names = texts(_DOMAIN, 'host names like "db.example.com"')(raw, place)
    return tuple(name.lower() for name in names)


def _endpoints(raw: object, place: Place) -> tuple[Endpoint, ...]:
    endpoints = []
    for each in items(raw, place):
        try:
            endpoints.append(parse_endpoint(text(each, place), place.folder))
        except InvalidEndpoint as error:
            raise place.refuse(f"holds a bad endpoint ({error})") from None
    return tuple(endpoints)


def _databases(raw: object, place: Place) -> frozenset[str] | None:
    if raw == "*":
        return None
    names = [text(each, place) for each in items(raw, place)]
    project = place.key.split(".")[1]
    for name in names:
        _check_label(name, f"{name}--{project}", place)
    return frozenset(names)


def _default_project(raw: object, place: Place) -> str:
    name = text(raw, place)
    if name:
        _check_label(name, name, place)
    return name


def _check_label(name: str, label: str, place: Place) -> None:
    parsed = parse_label(label)
    if parsed is None or "--" in name or name != name.lower():
        raise place.refuse(
            f'holds "{name}", which is no name',
            "names are made of a-z, 0-9 and single hyphens inside, and a label "
            f"<database>--<project> has at most {MAX_LABEL} characters",
        )


@attrs.frozen
class Limits:
    """`[limits]`: how much clients may ask for; bytes, seconds (`_s`) and numbers."""

    write_body_bytes: int = key(_WEB.write_body_bytes, integer(1, 256 * MIB))
    write_nodes: int = key(_WEB.write_nodes, integer(1, 128 * MIB))
    string_bytes: int = key(_WEB.string_bytes, integer(1, 256 * MIB))
    request_line_bytes: int = key(_CHANNEL.request_line_bytes, integer(1024, MIB))
    header_bytes: int = key(_CHANNEL.header_bytes, integer(1024, MIB))
    header_count: int = key(_CHANNEL.header_count, integer(10, 10_000))
    held_body_bytes: int = key(_CHANNEL.held_body_bytes, integer(1, 2**40))
    connections: int = key(_CHANNEL.connections, integer(1, 1_000_000))
    connections_per_address: int = key(_CHANNEL.connections_per_address, integer(1, 1_000_000))
    handshake_s: float = key(_CHANNEL.handshake_s, seconds(3600))
    head_s: float = key(_CHANNEL.head_s, seconds(3600))
    body_s: float = key(_CHANNEL.body_s, seconds(3600))
    body_bytes_per_s: int = key(_CHANNEL.body_bytes_per_s, integer(1, 1024 * MIB))
    idle_s: float = key(_CHANNEL.idle_s, seconds(86_400))
    write_stalled_s: float = key(_CHANNEL.write_stalled_s, seconds(86_400))
    linger_s: float = key(_CHANNEL.linger_s, seconds(60))
    databases: int = key(MOST_DATABASES, integer(1, 1_000_000))
    streams: int = key(_STREAMS.streams, integer(1, 10_000_000))
    streams_per_database: int = key(_STREAMS.streams_per_database, integer(1, 10_000_000))
    streams_per_address: int = key(_STREAMS.streams_per_address, integer(1, 10_000_000))


@attrs.frozen
class Streaming:
    """`[streams]`: how streams are kept alive, and what is kept for them."""

    keep_alive_s: float = key(_STREAMS.keep_alive_s, seconds(3600))
    buffer_bytes: int = key(_STREAMS.buffer_bytes, integer(1024, 256 * MIB))
    stalled_s: float = key(_STREAMS.stalled_s, seconds(86_400))
    retain_events: int = key(1000, integer(0, 10_000_000))


@attrs.frozen
class Rules:
    """`[rules]`: how large the rules of a project may be, and how much text they go through."""

    document_bytes: int = key(_RULES.document_bytes, integer(1, 64 * MIB))
    node_depth: int = key(_RULES.node_depth, integer(1, 32))
    expression_bytes: int = key(_RULES.expression_bytes, integer(1, MIB))
    nesting: int = key(_RULES.nesting, integer(1, MAX_NESTING))
    chain_terms: int = key(_RULES.chain_terms, integer(2, 100_000))
    regex_size: int = key(_RULES.regex_size, integer(1, 20_000))
    judged_characters: int = key(_RULES.judged_characters, integer(1, 2**40))

    def limits(self) -> RulesLimits:
        """Return them as the rules know them."""
        return RulesLimits(**attrs.asdict(self))


@attrs.frozen
class Http:
    """`[http]`: what the interface says of itself to clients, and to the log."""

    etag_headers: tuple[str, ...] = key(
        _WEB.etag_headers, texts(r"[A-Za-z0-9-]+", 'parts of header names like "Vendor"')
    )
    cors_origins: tuple[str, ...] = key(
        _WEB.cors_origins, texts(_ORIGIN, 'origins like "https://app.example.com", or "*"')
    )
    access_log: bool = key(False, switch)


def _issuer(raw: object, place: Place) -> str:
    url = text(raw, place)
    if not is_issuer(url):
        raise place.refuse(f"must be {AN_ISSUER}")
    return url


def _jwks_uri(raw: object, place: Place) -> str:
    url = text(raw, place)
    if not is_https(url):
        raise place.refuse(f"must be {AN_HTTPS_URL}")
    return url


@attrs.frozen
class TrustedProvider:
    """`[[projects.<name>.providers]]`: whose tokens are taken, and how its keys are found."""

    issuer: str = key("", _issuer)
    audience: str = key("", text)
    jwks_uri: str = key("", _jwks_uri)
    ca_file: pathlib.Path | None = key(None, file)


def _providers(raw: object, place: Place) -> tuple[TrustedProvider, ...]:
    found = []
    for each in items(raw, place):
        provider = record(TrustedProvider)(each, place)
        if not provider.issuer or not provider.audience:
            raise place.refuse("lacks issuer or audience", "name both for every provider")
        found.append(provider)
    return tuple(found)


@attrs.frozen
class Project:
    """`[projects.<name>]`; `databases` is None where any may be created."""

    databases: frozenset[str] | None = key(frozenset({"default"}), _databases)
    dialect: DialectChoice = key("auto", choice("auto", "standard", "firebase"))
    require_index: bool = key(False, switch)
    secret_files: tuple[pathlib.Path, ...] = key((), files)
    rules_file: pathlib.Path | None = key(None, file)
    providers: tuple[TrustedProvider, ...] = key((), _providers)
    max_token_life_s: float | None = key(None, seconds(10 * 365 * 86_400))


def _projects(raw: object, place: Place) -> Mapping[str, Project]:
    if not isinstance(raw, dict):
        raise place.refuse("must hold a table for each project, [projects.<name>]")
    projects = {}
    for name, table in raw.items():
        _check_label(name, name, place)
        projects[name] = record(Project)(table, place.at(name))
    return MappingProxyType(projects)


@attrs.frozen
class Settings:
    """All settings.

    The last three are no keys. `development` is what holds where no file is named; `place` and
    `listen_place` are where the settings come from, for sentences about files that they name.
    """

    listen: tuple[Endpoint, ...] = key((), _endpoints)
    domains: tuple[str, ...] = key((), _domains)
    default_project: str = key("", _default_project)
    data: pathlib.Path = key(pathlib.Path("/var/lib/treedb"), folder)
    engine: EngineName = key("sqlite", choice("sqlite", "memory"))
    workers: int = key(1, integer(1, 1))
    emulator: bool = key(False, switch)
    limits: Limits = key(Limits(), record(Limits))
    streams: Streaming = key(Streaming(), record(Streaming))
    http: Http = key(Http(), record(Http))
    rules: Rules = key(Rules(), record(Rules))
    projects: Mapping[str, Project] = key(MappingProxyType({}), _projects)
    development: bool = False
    place: Place = attrs.field(default=_BY_PROGRAM, eq=False)
    listen_place: Place = attrs.field(default=_BY_PROGRAM.at("listen"), eq=False)

    def place_of(self, project: str) -> Place:
        """Return where the keys of a project stand."""
        return self.place.at("projects").at(project)


def load_settings(
    file: pathlib.Path | None, flags: Mapping[str, object], folder: pathlib.Path
) -> Settings:
    """Read `file`, or take development mode's settings for None; `flags` win over both.

    `folder` is the working directory: what relative paths of flags, and of `file` itself, start
    from. Raises `ConfigError`.
    """
    command_line = Place(COMMAND_LINE, folder)
    overrides = read_fields(Settings, flags, command_line)
    if file is None:
        place = Place(DEVELOPMENT_MODE, folder)
        settings = attrs.evolve(_development(folder), **overrides)
    else:
        place = Place(str(file), (folder / file).absolute().parent)
        settings = Settings(**{**read_fields(Settings, _parse(file, folder), place), **overrides})
    listen_place = (command_line if "listen" in overrides else place).at("listen")
    settings = attrs.evolve(settings, place=place, listen_place=listen_place)
    _check(settings)
    return settings


def _development(folder: pathlib.Path) -> Settings:
    return Settings(
        listen=tuple(parse_endpoint(each, folder) for each in DEVELOPMENT_LISTEN),
        domains=("localhost",),
        default_project=DEVELOPMENT_PROJECT,
        data=folder / DEVELOPMENT_DATA,
        emulator=True,
        projects=MappingProxyType({DEVELOPMENT_PROJECT: Project(databases=None)}),
        development=True,
    )


def _parse(file: pathlib.Path, folder: pathlib.Path) -> dict[str, object]:
    try:
        return tomllib.loads((folder / file).read_bytes().decode())
    except OSError as error:
        problem, remedy = error.strerror, "name a file that can be read with --config"
    except UnicodeDecodeError:
        problem, remedy = "it is not UTF-8", "save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        problem, remedy = f"it is not TOML, {error}", "correct it there"
    raise ConfigError(f"{file}: {problem}: {remedy}.")


def _check(settings: Settings) -> None:
    """Refuse what does not go together."""
    default = settings.default_project
    if default and default not in settings.projects:
        raise settings.place.at("default_project").refuse(
            f'names "{default}", which is not configured', f"add [projects.{default}] or remove it"
        )
    for endpoint in settings.listen:
        if settings.emulator and not endpoint.is_loopback:
            raise settings.listen_place.refuse(
                f"opens {endpoint.text} to others, which emulator mode must not",
                "add interface=127.0.0.1, or set emulator = false in a file for --config",
            )
        if endpoint.is_secure and endpoint.certificate is None and not settings.development:
            raise settings.listen_place.refuse(
                f"has no certificate for {endpoint.text}", "add privateKey= and certKey="
            )
