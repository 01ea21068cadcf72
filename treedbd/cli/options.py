"""Options and values that several commands share: addresses, network, tokens, queries, settings.

*URLs* are parsed once, as leniently as in a browser, and sent byte for byte (`Url`). *Addresses*
are URLs, or paths below a base: the URL in `TREEDB_URL`, or else that of the daemon which serves
the data directory, from the lock file there. `--project` and `TREEDB_PROJECT` name the database if
a URL does not.

*Options of a query* become parameters of the interface. The interface expects JSON, but a shell
removes quotation marks, so other text is sent as a JSON string.

The sentences of requests that fail are here too, because all clients of this package use the same.
"""

from __future__ import annotations

import argparse
import io
import ipaddress
import json
import math
import os
import pathlib
import re
import sys
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final, NamedTuple, TypeAlias, cast
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, unquote, urlsplit

import attrs
import orjson

from treedbd.cli.exit import CommandFailed, OutputClosed
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, LOCAL_CERTIFICATE
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.names import parse_label
from treedbd.tree.types import InvalidPath, Path

SUFFIX: Final = ".json"
ACTIVITY: Final = "/.inspect/activity.json"
RULES: Final = "/.settings/rules.json"
_RULES_NAME: Final = "rules.json"
LOCALHOST: Final = "localhost"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_KEPT: Final = "/%:@!$&'()*+,;=-._~"
_PORTS: Final = {"http": 80, "https": 443}
_UNIX: Final = "unix"
_HEALTH: Final = "/.health"
_TOKENS: Final = frozenset({"auth", "access_token"})

DEFAULT_TRIES: Final = 25
CONNECT_S: Final = 30.0
"""How long a connection may take to open."""
SILENCE_S: Final = 60.0
"""How long a server may send nothing: twice the time that a request has at a daemon."""
LOOPBACK: Final = ("127.0.0.1", "::1")
"""The addresses of the names of this machine, in the order in which they are tried."""
MAX_ERROR_BYTES: Final = 65_536
"""How much of an error is read."""
OWN_HEADERS: Final = {"User-Agent": "treedb", "X-TreeDB-Dialect": "standard"}
"""Headers of each request: errors have a code and a reason, with a token too."""
NO_SERVER: Final = "No server listens at {}."
UNKNOWN_NAME: Final = "The host name in {} is not known."
SILENT: Final = "{} does not respond."
NOT_CONNECTED: Final = "The connection to {} failed."
CLOSED: Final = "{} closed the connection without a response."
CUT_OFF: Final = "The response of {} was cut off."
OTHER_NAME: Final = "The certificate of {} is for another name: give a URL with that name."
_WANTS_ADMIN: Final = "requires an admin's token."
_HINT: Final = " Put one into the variable TREEDB_TOKEN; in development mode owner is one."

NAMESPACE: Final = "ns"
OVERRIDE: Final = "auth_variable_override"

TOKEN_VARIABLE: Final = "TREEDB_TOKEN"  # noqa: S105 - the name of a variable
PROJECT_VARIABLE: Final = "TREEDB_PROJECT"
STANDARD_INPUT: Final = "-"
CONFIG_HELP: Final = "the daemon's configuration file (default: the settings of development mode)"
_DATA_HELP: Final = "the data directory, if the daemon was started with --data"
_MAX_TOKEN_BYTES: Final = 65_536
_MAX_DIGITS: Final = 16
_TIMEOUT = re.compile(r"([0-9]{1,9})(ms|s|min|m)", re.ASCII)
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0}
_LONGEST_TIMEOUT_S: Final = 900.0
_LATER_S: Final = 2.0
_TOKEN = re.compile(r"[!-~]+")

_BOUNDS: Final = {
    "--start-at": "at or after this value",
    "--start-after": "after this value",
    "--end-at": "at or before this value",
    "--end-before": "before this value",
    "--equal-to": "at this value",
}
_BY_KEY: Final = '"$key"'
_LIMITS: Final = {"--limit-to-first": "the first N", "--limit-to-last": "the last N"}
_NAMES: Final = ("--order-by", *_LIMITS, *_BOUNDS, "--where")

URL_VARIABLE: Final = "TREEDB_URL"
ADDRESS_HELP: Final = f"the URL of a path, or a path below {URL_VARIABLE} or the daemon of --data"
_LOOKS_LIKE_HOST = re.compile(r"[A-Za-z0-9.-]*:[0-9]*(/|\Z)|\[")
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|unix:", re.ASCII)
_ATTRIBUTES: Final = ("source", "url")
UP: Final = ".."
HERE: Final = "."
_LABELS_WITH_DATABASE: Final = 3


class InvalidUrl(argparse.ArgumentTypeError):
    """A text that cannot be used as a URL; the message says why, without the text."""


class NoResponse(CommandFailed):
    """The server cannot be reached or did not respond; a later request may succeed."""


@attrs.frozen
class Url:
    """An http or https URL in ASCII, or a path of the daemon at a Unix socket.

    `unix:/run/treedb.sock:/users/ada` is such a path: the file of the socket, in which `%3A` is a
    colon, and after the next colon the path and the query.

    `host` is without the brackets of IPv6. `socket` is the file of the socket; the host is
    `localhost` then, which names no database.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    socket: str = ""

    def __str__(self) -> str:
        """Return the URL; one with a host as it is sent."""
        separator = ":" if self.socket else ""
        return f"{self.origin}{separator}{self.target}"

    @property
    def target(self) -> str:
        """The path and the query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def authority(self) -> str:
        """Host and port, as in the header `Host`: without the port if it is the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme, self.port) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, without the port if it is the default; or the socket."""
        if self.socket:
            return f"{_UNIX}:{quote(self.socket, safe=_KEPT.replace(':', ''))}"
        return f"{self.scheme}://{self.authority}"

    @property
    def is_secure(self) -> bool:
        """Whether it is an https URL."""
        return self.scheme == "https"

    @property
    def has_path(self) -> bool:
        """Whether it names a part of a database, not the whole."""
        return bool(self.path.removesuffix(SUFFIX).strip("/"))

    def to_json(self) -> Url:
        """Return the URL with `.json` at the end of its path."""
        has_suffix = self.path.endswith(SUFFIX)
        return self if has_suffix else attrs.evolve(self, path=(self.path or "/") + SUFFIX)

    def below(self, path: Path) -> Url:
        """Return the URL of a path below the one that this names."""
        root = self.path.removesuffix(SUFFIX).rstrip("/")
        keys = "".join("/" + quote(key, safe="") for key in path)
        return attrs.evolve(self, path=root + keys)

    def to_rules(self) -> Url:
        """Return the URL of the rules of the project whose root this is."""
        root = self.path.removesuffix(RULES).removesuffix(f"/{SUFFIX}").rstrip("/")
        return attrs.evolve(self, path=root + RULES)

    def to_settings(self, name: str) -> Url:
        """Return the URL of a resource for admins of the database whose root this is."""
        rules = self.to_rules()
        return attrs.evolve(rules, path=rules.path.removesuffix(_RULES_NAME) + name)

    def to_activity(self) -> Url:
        """Return the URL of what clients do with the project whose root this is."""
        root = self.to_rules().path.removesuffix(RULES)
        return attrs.evolve(self, path=root + ACTIVITY)

    def to_inspect(self, name: str) -> Url:
        """Return the URL of what admins see of the project whose root this is."""
        root = self.to_rules().path.removesuffix(RULES)
        return attrs.evolve(self, path=f"{root}/.inspect/{name}")

    def to_standby(self, name: str) -> Url:
        """Return the URL of what standbys request of the project whose root this is."""
        root = self.to_rules().path.removesuffix(RULES)
        return attrs.evolve(self, path=f"{root}/.standby/{name}")

    def to_health(self) -> Url:
        """Return the URL that says which database the root that this is belongs to."""
        return attrs.evolve(self, path=self.path + _HEALTH).with_parameters({"database": "true"})

    def has(self, name: str) -> bool:
        """Return whether the query has a parameter."""
        return any(name == given for given, _ in parse_qsl(self.query, keep_blank_values=True))

    def with_parameters(self, parameters: Mapping[str, str]) -> Url:
        """Return the URL with more parameters."""
        more = (f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        return attrs.evolve(self, query="&".join(filter(None, (self.query, *more))))


def parse_url(text: str) -> Url:
    """Parse a URL of a command line; raise `InvalidUrl`.

    `.json` may be omitted. What a URL cannot contain (quotation marks, blanks, letters beyond
    ASCII) is percent-encoded; what is encoded already stays as it is. A URL with a token is an
    error: other users of the machine can read command lines.
    """
    if _CONTROL.search(text):
        raise InvalidUrl("must not contain control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
        path, query = quote(parts.path, safe=_KEPT), quote(parts.query, safe=_KEPT + "?")
    except ValueError:  # UnicodeEncodeError is one
        raise InvalidUrl("must be a URL") from None
    if parts.scheme not in _PORTS and parts.scheme != _UNIX:
        raise InvalidUrl("must begin with https://, http:// or unix:")
    if parts.fragment:
        raise InvalidUrl("must not contain #; write %23 in a query")
    if parts.scheme == _UNIX:
        url = _at_socket(parts, path, query)
    else:
        url = Url(
            scheme=parts.scheme,
            host=_host(parts),
            port=port or _PORTS[parts.scheme],
            path=path,
            query=query,
        )
    if parts.username is not None or any(map(url.has, _TOKENS)):
        raise InvalidUrl("must not contain a token; use TREEDB_TOKEN or --token-file")
    return url


def _at_socket(parts: SplitResult, quoted: str, query: str) -> Url:
    socket, _, path = quoted.partition(":")
    if parts.netloc or not socket or (path and not path.startswith("/")):
        raise InvalidUrl("must be unix:SOCKET:/PATH, as in unix:/run/treedb.sock:/users/ada")
    return Url(
        scheme=_UNIX, host=LOCALHOST, port=0, path=path or "/", query=query, socket=unquote(socket)
    )


def is_local_name(host: str) -> bool:
    """Return whether a name always means this machine (RFC 6761, section 6.3)."""
    name = host.lower().removesuffix(".")
    return name == LOCALHOST or name.endswith("." + LOCALHOST)


def is_local(host: str) -> bool:
    """Return whether a name or an address means this machine."""
    address = _address(host)
    return is_local_name(host) if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    try:
        if ":" in host:
            return str(ipaddress.IPv6Address(host))
        encoded = host.encode("idna").decode()
    except ValueError:
        encoded = ""
    if not _NAME.fullmatch(encoded):
        raise InvalidUrl("must have a host, as in https://localhost:8443/a.json")
    return encoded


def describe_error(status: int, body: bytes, url: Url) -> str:
    """Return the sentence for an error response: of treedb in either dialect, or another server."""
    try:
        error = orjson.loads(body)
    except ValueError:
        error = None
    if isinstance(error, dict) and isinstance(error.get("error"), str):
        if isinstance(error.get("message"), str):
            message = error["message"].strip()
            hint = _HINT if message.endswith(_WANTS_ADMIN) else ""
            return f"{status} {error['error']}: {message}{hint}"
        return f"{status}: {error['error'].strip()}"
    return f"{url.origin} returned the status {status}."


def describe_tls_failure(reason: str, origin: str) -> CommandFailed:
    """Return the exception for a failed handshake; `reason` is what OpenSSL says."""
    if "certificate verify failed" in reason:
        return CommandFailed(
            f"The certificate of {origin} is not signed by a trusted authority, or has expired: "
            "name its authority by --cacert."
        )
    if "wrong version number" in reason or "record layer failure" in reason:
        return CommandFailed(f"{origin} does not speak TLS.")
    return NoResponse(f"The TLS connection to {origin} failed.")


class SessionParser(ArgumentParser):
    """The parser of a command in the shell.

    It has no options of the connection, which is that of the shell, and its URLs are paths as text.
    """


def add_flag(parser: argparse._ActionsContainer, *words: str) -> None:
    """Add an option without a value: its names, and then its summary."""
    *names, summary = words
    parser.add_argument(*names, action="store_true", help=summary)


def add_config_option(
    parser: argparse._ActionsContainer,
    *short: str,
    metavar: str = "FILE",
    summary: str = CONFIG_HELP,
) -> None:
    """Add the option `--config`, which may precede the command as well."""
    parser.add_argument(
        *short, "--config", metavar=metavar, default=argparse.SUPPRESS, help=summary
    )


def add_settings_options(parser: ArgumentParser, data_help: str = _DATA_HELP) -> None:
    """Add the options that name the configuration and the data, except in the shell."""
    if isinstance(parser, SessionParser):
        return
    group = parser.add_argument_group("configuration and data")
    add_config_option(group)
    group.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help=data_help)


def add_address(
    parser: ArgumentParser, summary: str = ADDRESS_HELP, name: str = "url", metavar: str = "URL"
) -> None:
    """Add an argument that is a URL or a path."""
    parser.add_argument(name, metavar=metavar, type=parse_address, help=summary)


def number_from(least: int, most: int = 2**53) -> Callable[[str], int]:
    """Return the function by which argparse parses a whole number within bounds."""
    limits = f"from {least} to {most}" if most < 2**53 else f"of at least {least}"

    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        if not is_number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a number {limits}")
        return int(text)

    return parse


def seconds_from(least: float, most: float, sentence: str) -> Callable[[str], float]:
    """Return the function by which argparse parses seconds; `sentence` says what they must be."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not least <= seconds <= most:
            raise argparse.ArgumentTypeError(sentence)
        return seconds

    return parse


@contextmanager
def reported(name: object, verb: str) -> Iterator[None]:
    """In a `with` block, raise an OSError as `CommandFailed`: "<name> cannot be <verb> (…)"."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{name} cannot be {verb} ({error.strerror}).") from None


@contextmanager
def writing(name: str, descriptor: int | None) -> Iterator[None]:
    """As `reported`, for writing to a file; an open one has a descriptor, as in `descriptor_of`.

    Raises `OutputClosed` if the reader of an open one has closed it.
    """
    with reported(name, "written"):
        try:
            yield
        except BrokenPipeError:
            if descriptor is None:
                raise
            raise OutputClosed from None


def parse_project(text: str) -> str:
    """Return the label of a database: `shop`, or `eu--shop`; raise ArgumentTypeError."""
    if parse_label(text) is None:
        raise argparse.ArgumentTypeError("must be a project, or <database>--<project>")
    return text


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that send requests to a daemon, except in the shell."""
    if isinstance(parser, SessionParser):
        return
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--project",
        dest="ns",
        metavar="P",
        type=parse_project,
        help="the project, or <database>--<project>, where the URL names none by ns (default: the "
        f"variable {PROJECT_VARIABLE})",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        type=pathlib.Path,
        help=f"a file with the token to send (default: the variable {TOKEN_VARIABLE})",
    )
    group.add_argument(
        "--cacert",
        metavar="FILE",
        type=pathlib.Path,
        help="certificates in PEM that verify the server (default: those of the system; for this "
        "machine, that of development mode)",
    )


def add_tries_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits how often a conditional write is tried."""
    parser.add_argument(
        "--tries",
        metavar="N",
        type=number_from(1, 1_000_000),
        default=DEFAULT_TRIES,
        help="how often it is tried while others write (default: %(default)s)",
    )


def add_timeout_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits how long a request may take."""
    summary = "fail if the request is not done after this time: 500ms, 5s, 2min (at most 15min)"
    parser.add_argument("--timeout", metavar="TIME", type=_timeout, help=summary)


def time_parameters(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the parameter of the interface for `--timeout`."""
    timeout: Timeout | None = arguments.timeout
    return {} if timeout is None else {"timeout": timeout.text}


class Timeout(NamedTuple):
    """A time-out as the interface reads it, and how long a client waits: a little longer."""

    text: str
    client_s: float


def _timeout(text: str) -> Timeout:
    found = _TIMEOUT.fullmatch(text)
    seconds = int(found[1]) * _TIME_UNITS[found[2]] if found else 0.0
    if found is None or not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise argparse.ArgumentTypeError("must be a number with a unit, as in 500ms, 5s or 2min")
    # The interface has no unit `m`, which --ttl has.
    unit = "min" if found[2] == "m" else found[2]
    return Timeout(found[1] + unit, seconds + _LATER_S)


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the daemon's settings; raise `CommandFailed`."""
    file, data = getattr(arguments, "config", None), getattr(arguments, "data", None)
    try:
        return load_settings(
            None if file is None else pathlib.Path(file),
            {} if data is None else {"data": data},
            pathlib.Path.cwd(),
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from None


def read_stored_settings(arguments: argparse.Namespace, done: str) -> Settings:
    """Return the settings of a daemon that has a data directory; raise `CommandFailed`.

    `done` completes the sentence of an error, as "checked" does.
    """
    settings = read_settings(arguments)
    if settings.engine == "memory":
        raise CommandFailed(f"The memory engine stores nothing that could be {done}.")
    if settings.is_cluster:
        raise CommandFailed(
            f"The data is in PostgreSQL, and cannot be {done} here: use the tools of PostgreSQL."
        )
    if not settings.data.is_dir():
        raise CommandFailed(
            f"There is no data directory {settings.data}: choose one by --config or --data."
        )
    return settings


def read_token(arguments: argparse.Namespace) -> str | None:
    """Return the token to send, None if none is given; raise `CommandFailed`."""
    file: pathlib.Path | None = arguments.token_file
    if file is not None:
        return read_token_file(file)
    token = os.environ.get(TOKEN_VARIABLE, "")
    return _check_token(token, f"The variable {TOKEN_VARIABLE}") if token else None


def read_token_file(file: pathlib.Path) -> str:
    """Return the token in a file; raise `CommandFailed`."""
    with reported(file, "read"), file.open("rb") as opened:
        token = opened.read(_MAX_TOKEN_BYTES).decode("latin-1").rstrip("\r\n")
    return _check_token(token, str(file))


def _check_token(token: str, source: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise CommandFailed(f"{source} does not hold a token, which is one word.")
    return token


def choose_authorities(
    arguments: argparse.Namespace, url: Url, settings: Settings
) -> tuple[pathlib.Path, ...]:
    """Return the certificate files that verify the server of a URL; none if the system's do.

    Development mode's own certificates are trusted for this machine only.
    """
    given: pathlib.Path | None = arguments.cacert
    if given is not None:
        return (given,)
    if not (url.is_secure and is_local(url.host) and settings.development):
        return ()
    own = (LOCAL_CERTIFICATE, AUTHORITY_CERTIFICATE)
    return tuple(file for name in own if (file := settings.data / name).exists())


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def read_value(value: str) -> bytes:
    """Return the bytes of a value on the command line, or of standard input for `-`.

    A byte order mark at the beginning of standard input is left out.
    """
    if value != STANDARD_INPUT:
        return os.fsencode(value)
    with reported("Standard input", "read"):
        return standard_input().read().removeprefix(BOM_UTF8)


def standard_input() -> io.BufferedReader:
    """Return standard input as bytes; raise `CommandFailed` if there is none."""
    if sys.stdin is None:
        raise CommandFailed("Standard input is closed.")
    return cast(io.BufferedReader, sys.stdin.buffer)


def _name_of(option: str) -> str:
    """Return the parameter of an option: `limitToFirst`."""
    first, *more = option[2:].split("-")
    return first + "".join(map(str.capitalize, more))


_OPTIONS: Final = {_name_of(option): option for option in _NAMES}
_PARAMETER: Final = re.compile(rf"\b(?:{'|'.join(_OPTIONS)})\b")


def add_query_options(parser: ArgumentParser) -> None:
    """Add the options that make a read a query."""
    group = parser.add_argument_group("query: which children")
    group.add_argument(
        "--order-by", metavar="CHILD", help="a path below each, or $key, $value or $priority"
    )
    for name, summary in _LIMITS.items():
        group.add_argument(name, metavar="N", help=summary)
    group.add_argument(
        "--where", metavar="JSON", help='conditions on each, such as {"age":{">=":18}}'
    )
    for name, summary in _BOUNDS.items():
        group.add_argument(name, metavar="VALUE", help=summary)


def query_parameters(arguments: Namespace) -> dict[str, str]:
    """Return the parameters of the options that were given."""
    found: dict[str, str] = {}
    for option in _NAMES:
        value = getattr(arguments, option[2:].replace("-", "_"))
        if value is None:
            continue
        name = _name_of(option)
        if option == "--order-by":
            value = _as_string(value)
        elif option in _BOUNDS:
            # A bound of an order by key is a key, even if it looks like a number.
            value = _as_string(value) if found.get("orderBy") == _BY_KEY else _as_bound(value)
        found[name] = value
    return found


@contextmanager
def in_options() -> Iterator[None]:
    """In a `with` block, name options instead of parameters in the sentences of errors."""
    try:
        yield
    except CommandFailed as error:
        if not str(error).startswith("400"):
            raise
        sentence = _PARAMETER.sub(lambda found: _OPTIONS[found[0]], str(error))
        raise CommandFailed(sentence, *error.details) from None


def _as_string(text: str) -> str:
    return text if text.startswith('"') and is_json(text) else json.dumps(text)


def _as_bound(text: str) -> str:
    """Return a bound as it is if it is JSON, or a value and a key; else the text as a string."""
    value, comma, key = text.rpartition(',"')
    if is_json(text) or (comma and is_json(value) and is_json(f'"{key}')):
        return text
    return json.dumps(text)


@attrs.frozen
class BarePath:
    """A path without a host, and its query, as in `/users/ada?ns=shop`."""

    path: str
    query: str


Address: TypeAlias = Url | BarePath


def add_optional_address(parser: ArgumentParser, meaning: str = ADDRESS_HELP) -> None:
    """Add the argument URL, which is the root by default."""
    parser.add_argument(
        "url",
        metavar="URL",
        type=parse_address,
        nargs="?",
        default="/",
        help=f"{meaning} (default: /)",
    )


def parse_address(text: str) -> Address:
    """Parse a URL or a path of a command line; raise `InvalidUrl`."""
    if not text or _HAS_SCHEME.match(text) or _LOOKS_LIKE_HOST.match(text):
        return parse_url(text)
    # Parsed as the path of a URL, so that the same rules and errors apply.
    url = parse_url(f"http://{LOCALHOST}/{text.removeprefix('/')}")
    return BarePath(url.path, url.query)


def resolve(arguments: Namespace) -> None:
    """Make URLs of the addresses of a command line; raise `InvalidUrl` or `CommandFailed`."""
    project = getattr(arguments, "ns", None)
    for name in _ATTRIBUTES:
        address = getattr(arguments, name, None)
        if isinstance(address, BarePath):
            address = _below_base(address, find_bases(arguments)[0])
        elif not isinstance(address, Url):
            continue
        setattr(arguments, name, in_project(address, project))


def require_database(arguments: Namespace, argument: str) -> None:
    """End with the error of the parser of a command line whose URL names a path in a database."""
    if arguments.url.has_path:
        arguments.parser.error(f"argument {argument}: must name a database, not a path in it")


def default_project() -> str | None:
    """Return the project that the variable names; raise `InvalidUrl` if it is not one."""
    name = os.environ.get(PROJECT_VARIABLE) or None
    if name is not None and parse_label(name) is None:
        raise InvalidUrl(f"the variable {PROJECT_VARIABLE} must hold a project")
    return name


def in_project(url: Url, project: str | None) -> Url:
    """Return a URL that names the project; None is that of the variable. Raises `InvalidUrl`."""
    if url.has("ns"):
        return url
    if project is None and not url.host.endswith(f".{LOCALHOST}"):  # such a host names a project
        project = default_project()
    return url if project is None else url.with_parameters({"ns": project})


def _below_base(address: BarePath, base: Url) -> Url:
    root = base.path.removesuffix(SUFFIX).rstrip("/")
    query = "&".join(filter(None, (base.query, address.query)))
    return attrs.evolve(base, path=root + address.path, query=query)


def find_bases(arguments: Namespace) -> list[Url]:
    """Return the URLs below which a path alone may be, at least one, the best first.

    That is the one of the variable, or else those of the daemon which serves the data directory.
    Raises `InvalidUrl`.
    """
    base = os.environ.get(URL_VARIABLE)
    if base:
        try:
            return [parse_url(base)]
        except InvalidUrl as error:
            raise InvalidUrl(f"the variable {URL_VARIABLE} {error}") from None
    data = read_settings(arguments).data
    urls = _served_at(data)
    if not urls and hasattr(arguments, "data") and hasattr(arguments, "restart"):
        # `import` and `export` with --data work without a daemon.
        raise InvalidUrl(
            "with --data give a URL, such as http://localhost/users: its host names the database"
        )
    if not urls:
        raise InvalidUrl(
            f"no daemon serves {data}: start it (treedb serve), give a URL, or set {URL_VARIABLE}"
        )
    # Without TLS nothing has to be verified; all of them are on this machine.
    return sorted(urls, key=lambda url: url.is_secure)


def _served_at(data: pathlib.Path) -> list[Url]:
    """Return the URLs at which a running daemon serves a data directory; none if none runs."""
    # Imported only now: with it comes SQLite, which most commands do not need.
    found = import_module("treedbd.store.directory_lock").find_other(data)
    return [] if found is None else [parse_url(each) for each in found.urls]


def resolve_path(text: str, here: Path) -> Path:
    """Return the path that a text names, relative to another one; raise `CommandFailed`."""
    from treedbd.tree.path import check_depth, check_key

    keys = [] if text.startswith("/") else list(here)
    try:
        for segment in text.split("/"):
            if segment == UP:
                del keys[-1:]
            elif segment not in {"", HERE}:
                keys.append(check_key(segment))
        return check_depth(tuple(keys))
    except InvalidPath as error:
        raise CommandFailed(str(error)) from None


def split_url(url: Url, *others: str) -> tuple[Url, Path]:
    """Return the URL of the database of a URL, and the path in it; raise `InvalidUrl`.

    `others` are parameters that it may have besides `ns`.
    """
    from treedbd.tree.path import check_depth, check_key

    given = parse_qs(url.query, keep_blank_values=True)
    if not given.keys() <= {NAMESPACE, *others}:
        raise InvalidUrl("must have no other parameter than ns")
    segments = url.path.removesuffix(SUFFIX).split("/")
    try:
        path = check_depth(tuple(check_key(unquote(each)) for each in segments if each))
    except InvalidPath as error:
        raise InvalidUrl(f"must name a path: {error}") from None
    return attrs.evolve(url, path=""), path


def label_of(root: Url, default: str) -> str:
    """Return the label of a database in the prompt: from its URL, or `default`, or its host."""
    labels = parse_qs(root.query).get(NAMESPACE)
    if labels:
        return labels[-1]
    first, _, rest = root.host.partition(".")
    is_subdomain = is_local_name(rest) or root.host.count(".") + 1 >= _LABELS_WITH_DATABASE
    if is_subdomain and _address(root.host) is None and parse_label(first) is not None:
        return first.lower()
    return default or root.authority


def with_parameter(root: Url, label: str) -> Url:
    """Return the URL of another database at the same host, named by a parameter."""
    return attrs.evolve(root, query="").with_parameters({NAMESPACE: label})


def with_host(root: Url, label: str) -> Url:
    """Return the URL of another database, named by the first label of the host."""
    rest = root.host.partition(".")[2]
    return attrs.evolve(root, query="", host=f"{label}.{rest}")
