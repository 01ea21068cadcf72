"""The settings of the daemon, read from a TOML file and from flags.

The records below, and those of `limits`, are the table of keys: a field is a key of the same name,
with its default and its reader; a new key is one new field. There is a record for each table of the
file, and `Settings` for the keys above the tables. Flags override the file, the file overrides the
defaults. A bad setting is a `ConfigError` that names the file, the key and the remedy. No other
file than the configuration is opened here.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pathlib
import re
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs

from treedbd.config.endpoints import (
    AUTHORITY_CERTIFICATE,
    LOCAL_CERTIFICATE,
    Endpoint,
    InvalidEndpoint,
    LocalNetwork,
    parse_endpoint,
)
from treedbd.config.values import (
    ConfigError,
    SettingLocation,
    as_in_a_file,
    boolean,
    file,
    files,
    folder,
    https_url,
    integer,
    issuer_url,
    items,
    key,
    number,
    one_of,
    read_table,
    seconds,
    table,
    text,
    texts,
)
from treedbd.files import read_installation
from treedbd.limits import (
    DEFAULT_PROJECT_DATABASES,
    KIB,
    MAX_HOOKS,
    MAX_LABEL_CHARACTERS,
    MAX_UID_PREFIX_CHARACTERS,
    MIB,
    PROJECT_RATES,
    FunctionLimits,
    HookLimits,
    Limits,
    RateLimits,
    ReaderLimits,
    RulesLimits,
    StreamLimits,
)
from treedbd.names import (
    DEFAULT_DATABASE,
    NO_PROXIES,
    NO_TARGETS,
    SERVICE_PROVIDER,
    AllowedTargets,
    CreatorName,
    DialectName,
    InvalidProxy,
    InvalidTarget,
    ReadsName,
    TrustedProxies,
    check_hook_url,
    parse_allowed_targets,
    parse_label,
    parse_trusted_proxies,
)

MAX_WORKERS: Final = 64
ENGINES: Final = ("sqlite", "memory")
POSTGRESQL_SCHEMES: Final = ("postgresql://", "postgres://")


def read_engine(raw: object, location: SettingLocation) -> str:
    """Return the engine that a setting names; raise `ConfigError`."""
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


def read_workers(raw: object, location: SettingLocation) -> int:
    """Return a number of worker processes, for `auto` one for each core; raise `ConfigError`."""
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


LogFormat: TypeAlias = Literal["text", "json"]
AccessLog: TypeAlias = bool | Literal["combined"]

MAX_SLOW_REQUEST_S: Final = 86_400.0
MAX_SLOW_RULE_MS: Final = 3_600_000.0


def read_access_log(raw: object, location: SettingLocation) -> AccessLog:
    """Read true, false or "combined"."""
    if not isinstance(raw, bool) and raw != "combined":
        raise location.error('must be true or false, or "combined"')
    return raw


@attrs.frozen
class LogSettings:
    """`[log]`: the form of all lines, and which requests and rules are logged.

    `format` is that of every line. `sample` is the fraction of the access log that is written;
    errors of the server and slow requests are always written. A request of more than
    `slow_request_s` seconds, and rules that take more than `slow_rule_ms` milliseconds for one
    request, are warnings; 0 is never.
    """

    format: LogFormat = key("text", one_of("text", "json"))
    sample: float = key(1.0, number(0.0, 1.0))
    slow_request_s: float = key(5.0, number(0.0, MAX_SLOW_REQUEST_S))
    slow_rule_ms: float = key(0.0, number(0.0, MAX_SLOW_RULE_MS))


HSTS_S: Final = 31_536_000
"""The `hsts_s` of a daemon that other machines reach: a year."""

_PAGE_ORIGIN: Final = r"[a-z][a-z0-9+.-]*://[^/?#@\s]+"
_ORIGIN: Final = r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+"


@attrs.frozen
class HttpSettings:
    """`[http]`: header names and origins of clients, access log, compression, page at `/`, HSTS.

    If `hsts_s` is None, it is `HSTS_S` for a daemon that other machines reach, else 0.
    """

    etag_headers: tuple[str, ...] = key(
        ("Vendor", "Firebase", "TreeDB"),
        texts(r"[A-Za-z0-9-]+", 'parts of header names like "Vendor"'),
    )
    cors_origins: tuple[str, ...] = key(
        ("*",), texts(_ORIGIN, 'origins like "https://app.example.com", or "*"')
    )
    access_log: AccessLog = key(False, read_access_log)
    compression: bool = key(True, boolean)
    page: bool = key(True, boolean)
    hsts_s: int | None = key(None, integer(0, 10 * HSTS_S))
    hsts_subdomains: bool = key(False, boolean)


def read_page_origins(raw: object, location: SettingLocation) -> tuple[str, ...]:
    """Read the origins of pages that `--origin` names; raise `ConfigError`."""
    origins = tuple(text(each, location) for each in items(raw, location))
    for origin in origins:
        if re.fullmatch(_PAGE_ORIGIN, origin) is None:
            raise location.error(
                f'is "{origin}", which is not the origin of a page, as https://app.example.com is',
                "give its scheme, host and port, and no path",
            )
    return origins


def _provider_name(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if name == SERVICE_PROVIDER:
        raise location.error(f'must not be "{name}", which is that of service tokens')
    return name


def _uid_prefix(raw: object, location: SettingLocation) -> str:
    prefix = text(raw, location)
    if len(prefix) > MAX_UID_PREFIX_CHARACTERS or not prefix.isprintable() or "/" in prefix:
        raise location.error(
            f"must be at most {MAX_UID_PREFIX_CHARACTERS} printable characters without /"
        )
    return prefix


@attrs.frozen
class ProviderSettings:
    """`[[projects.<name>.providers]]`: an issuer of tokens, and the uids of its users in rules.

    Two providers can give the same `sub` to different persons. So each of several providers has a
    prefix for its uids, and no prefix begins with another one.

    `name` is `auth.provider`, the host of the issuer if it is empty. `uid_prefix` precedes the
    `sub` of a token in `auth.uid`; only the provider of a project that has no other may omit it.
    """

    issuer: str = key("", issuer_url)
    audience: str = key("", text)
    jwks_uri: str = key("", https_url)
    ca_file: pathlib.Path | None = key(None, file)
    name: str = key("", _provider_name)
    uid_prefix: str | None = key(None, _uid_prefix)


HookForm: TypeAlias = Literal["event", "functions-1", "functions-2"]
HOOK_EVENTS: Final = ("created", "updated", "deleted", "written")
_HOOK_EVENTS: Final = 'events: "created", "updated" and "deleted", or "written" alone for all'


def provider_list(raw: object, location: SettingLocation) -> tuple[ProviderSettings, ...]:
    """Read the providers of a project."""
    found = []
    for each in items(raw, location):
        provider = table(ProviderSettings)(each, location)
        if not provider.issuer or not provider.audience:
            raise location.error("lacks issuer or audience", "set both for every provider")
        found.append(provider)
    if len(found) > 1:
        _check_uid_prefixes(found, location)
    return tuple(found)


def _check_uid_prefixes(providers: list[ProviderSettings], location: SettingLocation) -> None:
    """Raise `ConfigError` unless the users of all issuers have different uids."""
    issuers: dict[str, str] = {}
    for provider in providers:
        prefix = provider.uid_prefix
        if prefix is None:
            raise location.error(
                f"holds several, of which {provider.issuer} has no uid_prefix",
                'give each a uid_prefix of its own; that of one may be ""',
            )
        if issuers.setdefault(prefix, provider.issuer) != provider.issuer:
            raise location.error(
                f'gives {issuers[prefix]} and {provider.issuer} the same uid_prefix "{prefix}"',
                "give each issuer its own",
            )
    for longer, shorter in itertools.permutations(filter(None, issuers), 2):
        if longer.startswith(shorter):
            raise location.error(
                f'has the uid_prefix "{longer}", which begins with another one, "{shorter}"',
                'end each with a character that the others do not contain, like "google:"',
            )


def _databases(raw: object, location: SettingLocation) -> frozenset[str] | None:
    if raw == "*":
        return None
    names = [text(each, location) for each in items(raw, location)]
    project = location.key.split(".")[1]
    for name in names:
        check_label(name, f"{name}--{project}", location)
    return frozenset(names)


def check_label(name: str, label: str, location: SettingLocation) -> None:
    """Raise `ConfigError` unless `name` is a name, and `label` a label with it."""
    parsed = parse_label(label)
    if parsed is None or "--" in name or name != name.lower():
        raise location.error(
            f'holds "{name}", which is not a name',
            "use a-z, 0-9 and single hyphens between them; a label <database>--<project> has at "
            f"most {MAX_LABEL_CHARACTERS} characters",
        )


def _rates(raw: object, location: SettingLocation) -> Mapping[str, int]:
    if not isinstance(raw, dict):
        raise location.error("must be a table")
    for name in raw:
        if name not in PROJECT_RATES:
            raise location.at(name).error(
                "is not a rate of a project (the keys are " + ", ".join(PROJECT_RATES) + ")"
            )
    return MappingProxyType(read_table(RateLimits, raw, location))


@attrs.frozen
class HookSettings:
    """`[[projects.<name>.webhooks]]`: what is called when data of a project changes.

    Attributes:
        name: unique in the project.
        on: the pattern of the paths whose events it is for, as `/orders/$id`.
        events: the kinds of these events.
        url: what is called.
        form: what is sent: an event as it is documented, or as functions of Firebase receive it.
        secret_file: the secret that signs what is sent; only development and emulator mode may omit
            it.
        old_secret_file: a secret that signs it too, while receivers are given the other one.
        databases: those of the project that it is of; None for all.

    """

    name: str = key("", text)
    on: str = key("", text)
    events: tuple[str, ...] = key(("written",), texts("|".join(HOOK_EVENTS), _HOOK_EVENTS))
    url: str = key("", text)
    form: HookForm = key("event", one_of("event", "functions-1", "functions-2"))
    secret_file: pathlib.Path | None = key(None, file)
    old_secret_file: pathlib.Path | None = key(None, file)
    databases: frozenset[str] | None = key(None, _databases)


def _hook_list(raw: object, location: SettingLocation) -> tuple[HookSettings, ...]:
    """Read the hooks of a project; `config.hooks` checks the rest."""
    found: list[HookSettings] = []
    for each in items(raw, location):
        hook = table(HookSettings)(each, location)
        for name in ("name", "on", "url"):
            if not getattr(hook, name):
                raise location.error(f"lacks {name}", "set name, on and url for every webhook")
        if hook.name in [other.name for other in found]:
            raise location.error(
                f'holds two with the name "{hook.name}"', "give each a name of its own"
            )
        if ("written" in hook.events and len(hook.events) > 1) or not hook.events:
            raise location.at("events").error(f"must be {_HOOK_EVENTS}")
        found.append(hook)
    if len(found) > MAX_HOOKS:
        raise location.error(f"holds more than {MAX_HOOKS}", "remove some")
    return tuple(found)


@attrs.frozen
class ProjectSettings:
    """`[projects.<name>]`; `databases` is None if any may be created, up to `databases_max`.

    `rates` replace those of `[rates]`.
    """

    databases: frozenset[str] | None = key(frozenset({DEFAULT_DATABASE}), _databases)
    dialect: DialectName = key("auto", one_of("auto", "standard", "firebase"))
    require_index: bool = key(False, boolean)
    secret_files: tuple[pathlib.Path, ...] = key((), files)
    rules_file: pathlib.Path | None = key(None, file)
    providers: tuple[ProviderSettings, ...] = key((), provider_list)
    max_token_life_s: float | None = key(None, seconds(10 * 365 * 86_400))
    databases_max: int = key(DEFAULT_PROJECT_DATABASES, integer(1, 1_000_000))
    create_databases: CreatorName = key("rules", one_of("rules", "admin"))
    database_bytes: int = key(0, integer(0, 2**50))
    database_nodes: int = key(0, integer(0, 2**50))
    rates: Mapping[str, int] = key(MappingProxyType({}), _rates)
    webhooks: tuple[HookSettings, ...] = key((), _hook_list)


def read_projects(raw: object, location: SettingLocation) -> Mapping[str, ProjectSettings]:
    """Return the settings of the projects by their names; raise `ConfigError`."""
    if not isinstance(raw, dict):
        raise location.error("must hold a table for each project, [projects.<name>]")
    projects = {}
    for name, content in raw.items():
        check_label(name, name, location)
        projects[name] = table(ProjectSettings)(content, location.at(name))
    return MappingProxyType(projects)


@attrs.frozen
class RealtimeSettings:
    """`[realtime]`: whether the WebSocket of the SDKs of Firebase is served at `/.ws`."""

    enabled: bool = key(True, boolean)


BUCKET_SCHEME: Final = "s3://"
_BUCKET: Final = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^/\s?#]+)*/?"
_MAX_BASE_S: Final = 10 * 365 * 86_400


def _archive_place(raw: object, location: SettingLocation) -> str:
    """Read the place of an archive: empty for none, a URL of a bucket, or a folder."""
    place = text(raw, location)
    if not place:
        return place
    if place.startswith(BUCKET_SCHEME):
        if re.fullmatch(_BUCKET, place) is None:
            raise location.error("must be like s3://bucket/prefix")
        return place
    if "://" in place:
        raise location.error("must be a directory, or a URL like s3://bucket/prefix")
    return str(folder(place, location))


def _bucket_endpoint(raw: object, location: SettingLocation) -> str:
    """Read the URL of a service of buckets."""
    return _service_url(
        raw,
        location,
        "https://s3.example.com",
        "put the credentials into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )


def _service_url(raw: object, location: SettingLocation, example: str, remedy: str) -> str:
    """Read the URL of another service, or nothing; `remedy` is for what is secret in it."""
    url = text(raw, location)
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable():
        raise location.error(
            f"must be a URL such as {example}, without a user, a query or a fragment",
            f"correct it, and {remedy}",
        )
    return url


@attrs.frozen
class ArchiveSettings:
    """`[archive]`: where changes of all databases are sent, how often, and what is kept there.

    `to` is empty for no archive. A segment is written `every_s`, a base of each database that was
    written since the last one `base_every_s`. What is older than `keep_s` is removed, but not the
    newest `keep_bases` bases of each database. `endpoint` and `region` are of a bucket.
    """

    to: str = key("", _archive_place)
    key_file: pathlib.Path | None = key(None, file)
    every_s: float = key(1.0, number(0.1, 3600.0))
    base_every_s: float = key(86_400.0, seconds(_MAX_BASE_S))
    keep_s: float = key(604_800.0, seconds(_MAX_BASE_S))
    keep_bases: int = key(7, integer(1, 9999))
    endpoint: str = key("", _bucket_endpoint)
    region: str = key("", text)


_LIBRARIES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_TRACES_PATH: Final = "/v1/traces"


def _collector_url(raw: object, location: SettingLocation) -> str:
    """Read the URL of a collector; one without a path gets that of OTLP over HTTP."""
    remedy = "put what is secret into OTEL_EXPORTER_OTLP_HEADERS"
    url = _service_url(raw, location, "http://127.0.0.1:4318", remedy)
    if not url or urlsplit(url).path.strip("/"):
        return url
    return url.rstrip("/") + _TRACES_PATH


def _service_name(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if not name or not name.isprintable():
        raise location.error("must be a name")
    return name


@attrs.frozen
class TracingSettings:
    """`[tracing]`: the collector of spans, the fraction of requests, the name of the service."""

    endpoint: str = key("", _collector_url)
    sample: float = key(1.0, number(0, 1))
    service_name: str = key("treedb", _service_name)

    def check_libraries(self, location: SettingLocation) -> None:
        """Raise `ConfigError` if spans are to be sent and the libraries are not installed."""
        if self.endpoint and not all(map(_is_installed, _LIBRARIES)):
            raise location.at("endpoint").error(
                "needs the libraries of OpenTelemetry, which are not installed",
                f"run {read_installation().line_for('opentelemetry')}",
            )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


DEVELOPMENT_PROJECT: Final = "demo"
DEVELOPMENT_DATA: Final = "treedb-data"
DEVELOPMENT_LISTEN: Final = ("ssl:8443:interface=127.0.0.1", "tcp:9000:interface=127.0.0.1")
LAN_LISTEN: Final = ("ssl:8443", "tcp:9000:interface=127.0.0.1")
THIS_MACHINE: Final = parse_allowed_targets(("127.0.0.0/8", "::1", "localhost"))
"""What hooks may call in development mode."""
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


def _folder_or_none(raw: object, location: SettingLocation) -> pathlib.Path | None:
    return None if raw == "" else folder(raw, location)


def _daemon_url(raw: object, location: SettingLocation) -> str:
    """Read the URL of a daemon; tokens are sent to it, so without TLS it is on this machine."""
    url = text(raw, location).rstrip("/")
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        is_url = False
    is_plain = is_url and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    is_near = is_plain and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not is_plain or not (parts.scheme == "https" or (parts.scheme == "http" and is_near)):
        raise location.error(
            "must be an https URL without a path such as https://db1.example.com:8443, or http of "
            "this machine"
        )
    return url


def _allowed_targets(raw: object, location: SettingLocation) -> AllowedTargets:
    try:
        return parse_allowed_targets(text(each, location) for each in items(raw, location))
    except InvalidProxy as error:
        raise location.error(f"holds a bad entry ({error})") from None


@attrs.frozen
class WebhookSettings(HookLimits):
    """`[webhooks]`: `allow`, the addresses inside that hooks may call, and the limits of hooks."""

    allow: AllowedTargets = key(NO_TARGETS, _allowed_targets)


DEFAULT_FUNCTIONS: Final = "http://127.0.0.1:5001"
"""Where development mode calls functions: the port that their emulator has if none is chosen."""


def _functions_url(raw: object, location: SettingLocation) -> str:
    """Read the URL of what runs functions, without a trailing slash; empty for none."""
    url = _service_url(raw, location, DEFAULT_FUNCTIONS, "set no credentials").rstrip("/")
    if not url.isascii() or " " in url:
        raise location.error(f"must be a URL of ASCII characters such as {DEFAULT_FUNCTIONS}")
    return url


@attrs.frozen
class FunctionsSettings(FunctionLimits):
    """`[functions]`: `url`, of what runs functions of Firebase, empty for none; their limits."""

    url: str = key("", _functions_url)


@attrs.frozen
class AuditSettings:
    """`[audit]`: who wrote what, in files of `directory`; None for no audit.

    A file has about `file_bytes`, and is kept for `keep_s` seconds. Lines of writes have bodies of
    at most `body_bytes`. With `reads` those of admins are recorded too, and with `denied` writes
    that were denied.
    """

    directory: pathlib.Path | None = key(None, _folder_or_none)
    keep_s: float = key(400 * 86_400.0, seconds(100 * 365 * 86_400))
    file_bytes: int = key(32 * MIB, integer(64 * KIB, 2**40))
    body_bytes: int = key(0, integer(0, 64 * KIB))
    reads: bool = key(False, boolean)
    denied: bool = key(False, boolean)


def _default_project(raw: object, location: SettingLocation) -> str:
    name = text(raw, location)
    if name:
        check_label(name, name, location)
    return name


@attrs.frozen
class Settings:
    """The settings of a `TreeService`: the keys of the configuration file.

    `Settings.from_values` makes them from plain values, `load_settings` from a file; both check
    them and raise `ConfigError`. The constructor does not check them.
    The fields have the names, units and defaults of the keys, which `treedb init --print
    treedb.toml` explains: `listen` is empty for a service that is mounted in another site,
    `data` is the folder of the databases, `backups` that of the backups that an admin takes, None
    if there are none, `engine="memory"` stores nothing, `projects` has a `ProjectSettings` for each
    project.

    The last six are not keys, and a program does not set them: `development` is development mode,
    which has no file, and logs each request unless it is `quiet`; with `network` it serves other
    machines too. With `accept_loss` databases from which changes are missing are served, this time
    only. `location` and `listen_location` are the origins of the settings, for the text of errors.
    """

    listen: tuple[Endpoint, ...] = key((), _endpoints)
    domains: tuple[str, ...] = key((), _domains)
    trusted_proxies: TrustedProxies = key(NO_PROXIES, _trusted_proxies)
    default_project: str = key("", _default_project)
    data: pathlib.Path = key(pathlib.Path("/var/lib/treedb"), folder)
    backups: pathlib.Path | None = key(None, _folder_or_none)
    backups_kept: int = key(7, integer(1, 9999))
    engine: str = key("sqlite", read_engine)
    reads: ReadsName = key("strict", one_of("strict", "local"))
    workers: int = key(1, read_workers)
    standby_of: str = key("", _daemon_url)
    standby_token_file: pathlib.Path | None = key(None, file)
    standby_ca_file: pathlib.Path | None = key(None, file)
    standby_url: str = key("", _daemon_url)
    ops_listen: tuple[Endpoint, ...] = key((), _endpoints)
    console_listen: tuple[Endpoint, ...] = key((), _endpoints)
    emulator: bool = key(False, boolean)
    limits: Limits = key(Limits(), table(Limits))
    rates: RateLimits = key(RateLimits(), table(RateLimits))
    streams: StreamLimits = key(StreamLimits(), table(StreamLimits))
    readers: ReaderLimits = key(ReaderLimits(), table(ReaderLimits))
    webhooks: WebhookSettings = key(WebhookSettings(), table(WebhookSettings))
    functions: FunctionsSettings = key(FunctionsSettings(), table(FunctionsSettings))
    archive: ArchiveSettings = key(ArchiveSettings(), table(ArchiveSettings))
    audit: AuditSettings = key(AuditSettings(), table(AuditSettings))
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
        an unknown key or an invalid value.
        """
        location = SettingLocation(
            THE_SETTINGS, pathlib.Path.cwd() if folder is None else pathlib.Path(folder).absolute()
        )
        settings = cls(
            **read_table(cls, as_in_a_file(values), location),
            location=location,
            listen_location=location.at("listen"),
        )
        _check(settings)
        return settings

    @property
    def client_endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints for clients: those of `listen`, then the others of `console_listen`."""
        others = {each.place: each for each in self.console_listen}
        for endpoint in self.listen:
            others.pop(endpoint.place, None)
        return (*self.listen, *others.values())

    def names_for_console(self, endpoint: Endpoint) -> bool:
        """Return whether `console_listen` names an endpoint for clients."""
        return endpoint.place in {each.place for each in self.console_listen}

    @property
    def is_cluster(self) -> bool:
        """Whether the data is in PostgreSQL, and other daemons may serve it too."""
        return self.engine.startswith(POSTGRESQL_SCHEMES)

    @property
    def is_local(self) -> bool:
        """Whether only pages of this machine may send requests."""
        return self.development or self.emulator

    @property
    def logs_requests(self) -> bool:
        """Whether development mode logs each request, and what its sender may have overlooked."""
        return self.development and not self.quiet

    @property
    def any_host(self) -> bool:
        """Whether a host outside of `domains` is accepted, and names no database.

        A service that does not listen by itself is mounted in a program, which knows its own hosts.
        """
        return not self.is_local and not (self.domains and self.client_endpoints)

    @property
    def own_hosts(self) -> tuple[str, ...]:
        """Hosts that name no database: of this machine, or patterns such as `*.localhost`."""
        # Names below `localhost` are this machine (RFC 6761, section 6.3).
        hosts = () if self.network is None else self.network.hosts
        return ("*.localhost", *hosts) if self.is_local else ()

    @property
    def admin_token(self) -> str | None:
        """The token of an admin of development mode that other machines reach, else None."""
        return None if self.network is None else self.network.admin_token

    @property
    def created_certificate(self) -> pathlib.Path:
        """The file that verifies a service in development mode."""
        name = LOCAL_CERTIFICATE if self.network is None else AUTHORITY_CERTIFICATE
        return (self.data / name).absolute()

    def lets_others_reach(self, endpoint: Endpoint) -> bool:
        """Return whether an endpoint may be open to other machines; with `network`, by TLS only."""
        return not self.emulator and (self.network is None or endpoint.is_secure)

    @property
    def has_default_ports(self) -> bool:
        """Whether the ports are development mode's: if one is in use, the next free one is used."""
        return self.listen_location.source == DEVELOPMENT_MODE

    @property
    def ops_location(self) -> SettingLocation:
        """The location of `ops_listen`."""
        return self.location.at("ops_listen")

    @property
    def console_location(self) -> SettingLocation:
        """The location of `console_listen`."""
        return self.location.at("console_listen")

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
    """Return the settings in `file`, or those of development mode for None, with `flags`.

    Flags override both; the flag `origin` adds to `http.cors_origins`. Relative paths of flags, and
    of `file` itself, start from `folder`, the working directory. `content` is that of the file, if
    it was read before. With `network` development mode serves other machines too. Raises
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
        webhooks=WebhookSettings(allow=THIS_MACHINE),
        functions=FunctionsSettings(url=DEFAULT_FUNCTIONS),
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
    _check_standby(settings)
    _check_backups(settings)
    _check_archive(settings)
    _check_audit(settings)
    _check_hooks(settings)
    _check_proxies(settings)
    _check_log(settings)
    settings.tracing.check_libraries(settings.location.at("tracing"))
    _check_endpoints(settings, settings.listen, settings.listen_location)
    _check_endpoints(settings, settings.ops_listen, settings.ops_location)
    _check_endpoints(settings, settings.console_listen, settings.console_location)
    for endpoint in settings.ops_listen:
        if endpoint.is_proxied:
            raise settings.ops_location.error(
                f"holds {endpoint.text}, but operators are not served by way of haproxy:",
                "leave out haproxy:",
            )


def _check_standby(settings: Settings) -> None:
    """Raise `ConfigError` for a standby that could not follow, and for its keys without it."""
    location = settings.location.at("standby_of")
    if not settings.standby_of:
        for key in ("standby_url", "standby_token_file"):
            if getattr(settings, key):
                raise settings.location.at(key).error(
                    "has no effect without standby_of",
                    "remove it, or set standby_of to the URL of the first",
                )
        return
    if _origin_of(settings.standby_of) == _origin_of(settings.standby_url):
        raise location.error(
            "and standby_url name the same server, which cannot follow itself",
            "name the first as standby_of, and this server as standby_url",
        )
    if settings.is_cluster:
        raise location.error(
            "is set, but the data is in PostgreSQL, which has standbys of its own",
            "remove it, and let PostgreSQL replicate",
        )
    if settings.engine == "memory":
        raise location.error(
            "is set, but a standby keeps what it receives", 'set engine = "sqlite"'
        )
    if settings.workers > 1:
        raise location.error(
            f"is set, but one process follows, and workers is {settings.workers}",
            "set workers = 1 until it is promoted",
        )


def _origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, the host and the port of a URL that was checked; both may be missing."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _check_backups(settings: Settings) -> None:
    """Raise `ConfigError` for a directory of backups that cannot be used."""
    if settings.backups is None:
        return
    location = settings.location.at("backups")
    if settings.engine == "memory" or settings.is_cluster:
        raise location.error(
            "is set, but only databases in files are saved there",
            'remove it, or set engine = "sqlite"',
        )
    if settings.backups.resolve().is_relative_to(settings.data.resolve()):
        raise location.error("is in the data directory", "choose another directory")


def _check_archive(settings: Settings) -> None:
    """Raise `ConfigError` for an archive that cannot be written, or keys without one."""
    archive, location = settings.archive, settings.location.at("archive")
    if not archive.to:
        if archive != ArchiveSettings():
            raise location.error("has keys, but no archive", 'set to = "…" in it, or remove them')
        return
    if settings.engine == "memory":
        raise location.at("to").error(
            "is set, but what is in memory has no archive", 'remove it, or set engine = "sqlite"'
        )
    if archive.to.startswith(BUCKET_SCHEME):
        if not _is_installed("obstore"):
            raise location.at("to").error(
                "needs the library obstore, which is not installed",
                f"run {read_installation().line_for('s3')}",
            )
        return
    for name in ("endpoint", "region"):
        if getattr(archive, name):
            raise location.at(name).error("is set, but the archive is a directory", "remove it")
    place = pathlib.Path(archive.to).resolve()
    for other, what in (
        (settings.data, "the data directory"),
        (settings.backups, "the directory of backups"),
    ):
        if other is not None and place.is_relative_to(other.resolve()):
            raise location.at("to").error(f"is in {what}", "choose another directory")
        if other is not None and other.resolve().is_relative_to(place):
            raise location.at("to").error(f"contains {what}", "choose another directory")


def _check_audit(settings: Settings) -> None:
    """Raise `ConfigError` for a directory of the audit that cannot be used."""
    directory = settings.audit.directory
    if directory is None:
        return
    location = settings.location.at("audit").at("directory")
    if settings.engine == "memory":
        raise location.error(
            "is set, but what is in memory is not audited", 'remove it, or set engine = "sqlite"'
        )
    if directory.resolve().is_relative_to(settings.data.resolve()):
        raise location.error("is in the data directory", "choose another directory")


def _check_hooks(settings: Settings) -> None:
    """Raise `ConfigError` for hooks that call what they must not, or sign nothing."""
    for name, project in settings.projects.items():
        location = settings.location_of(name).at("webhooks")
        for hook in project.webhooks:
            _check_hook(settings, hook, location)
            unknown = sorted((hook.databases or frozenset()) - (project.databases or frozenset()))
            if unknown and project.databases is not None:
                raise location.error(
                    f'names the database "{unknown[0]}" for {hook.name}, which is not one of the '
                    "project",
                    "correct it, or add it to the databases of the project",
                )


def _check_hook(settings: Settings, hook: HookSettings, location: SettingLocation) -> None:
    try:
        check_hook_url(hook.url, settings.webhooks.allow, is_development=settings.development)
    except InvalidTarget as error:
        raise location.error(
            f"has a url for {hook.name} that {error}", "correct it, or add its host to allow"
        ) from None
    if hook.secret_file is not None:
        return
    if not settings.is_local:
        raise location.error(
            f"has no secret_file for {hook.name}, so that a receiver could not know who sends",
            "name a file with 32 random bytes or more",
        )
    if hook.old_secret_file is not None:
        raise location.error(
            f"has an old_secret_file for {hook.name}, but no secret_file", "name both or none"
        )


def _check_endpoints(
    settings: Settings, endpoints: tuple[Endpoint, ...], location: SettingLocation
) -> None:
    """Raise `ConfigError` for an endpoint that must not be reached, or that lacks a certificate."""
    for endpoint in endpoints:
        is_near = endpoint.is_loopback or endpoint.is_passed  # `Listening` checks it when adopted
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
    """Return the error of an endpoint that other machines reach, although they must not."""
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
        remedy = "name 127.0.0.1 in ListenStream="
    return location.error(
        f"opens {endpoint.text} to other machines, which {mode} does not allow",
        f"{remedy}, or {way}",
    )


def _check_log(settings: Settings) -> None:
    """Raise `ConfigError` for forms of lines that exclude each other."""
    if settings.http.access_log == "combined" and settings.log.format == "json":
        location = settings.location.at("http").at("access_log")
        raise location.error(
            'is "combined", but with format = "json" in [log] each line is a JSON object',
            'set access_log = true, or format = "text"',
        )


def _name_of_table(settings: Settings, project: str) -> str:
    """Return the table of a project as it is written in the origin of the settings."""
    if settings.location.source == THE_SETTINGS:
        return f'projects["{project}"]'
    return f"[projects.{project}]"


def _check_proxies(settings: Settings) -> None:
    """Raise `ConfigError` for proxies in emulator mode, which serves this machine only."""
    if settings.emulator and settings.trusted_proxies:
        # All clients of a proxy connect from this machine, and the admin's token is public.
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
