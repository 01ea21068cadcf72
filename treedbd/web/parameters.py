"""The query string, parsed from the raw request target.

`&` separates, `;` does not; a parameter without a value counts; `+` is a space. Parameters that the
interface does not know are ignored, but must decode; a known one given twice is an error. A token
may be one of them, or in a header.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from treedbd.http1.headers import Headers
from treedbd.http1.parser import BadEncoding, decode
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_CALLBACK_CHARACTERS, MAX_TIMEOUT_S
from treedbd.tree.query import PARAMETERS as QUERY_PARAMETERS
from treedbd.tree.query import WHERE
from treedbd.tree.types import InvalidQuery

Parameters: TypeAlias = dict[str, str]

ON_DISCONNECT: Final = "onDisconnect"
METHOD_OVERRIDE: Final = "x-http-method-override"
TIMEOUT_PATTERN: Final = r"([0-9]{1,9})(ms|s|min)"
KNOWN: Final = frozenset(
    {
        *("auth", "access_token", "auth_variable_override", "ns", "timeout", METHOD_OVERRIDE),
        *("shallow", "v", "format", "print", "callback", "download", "resume"),
        *QUERY_PARAMETERS,
        WHERE,
        ON_DISCONNECT,
        *("dryRun", "writeSizeLimit", "disableTriggers"),
    }
)

_LOCATING: Final = {name.encode(): name for name in ("ns", METHOD_OVERRIDE)}
"""Parameters that locate a request or choose its method; they count in a malformed query too."""
_NONE: Final[Parameters] = {}
_TIMEOUT = re.compile(TIMEOUT_PATTERN, re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
_RESERVED_WORDS: Final = frozenset(
    {
        *("await", "break", "case", "catch", "class", "const", "continue", "debugger"),
        *("default", "delete", "do", "else", "enum", "export", "extends", "false", "finally"),
        *("for", "function", "if", "import", "in", "instanceof", "new", "null", "return"),
        *("super", "switch", "this", "throw", "true", "try", "typeof", "var", "void"),
        *("while", "with", "yield"),
    }
)
"""The reserved words of JavaScript (ECMA-262, section 12.7.2)."""


def parse_parameters(raw: bytes) -> Parameters:
    """Parse a raw query string, without its `?`; raise `InvalidQuery`."""
    if not raw:
        return _NONE
    parameters: Parameters = {}
    for part in raw.split(b"&"):
        name, _, value = part.partition(b"=")
        name_text, value_text = _decode(name), _decode(value)
        if name_text not in KNOWN:
            continue
        if name_text in parameters:
            raise InvalidQuery(f"The parameter {name_text} is given twice.")
        parameters[name_text] = value_text
    return parameters


def find_parameter(uri: bytes, name: bytes) -> list[str]:
    """Return the values of a parameter that only some paths have; raise `InvalidQuery`."""
    parts = (part.partition(b"=") for part in uri.partition(b"?")[2].split(b"&"))
    return [_decode(value) for found, _, value in parts if found == name]


def parse_leniently(raw_query: bytes) -> Parameters:
    """Return the parameters of a query; of a malformed one only those in `_LOCATING`.

    Of these the first of each name counts; one that cannot be decoded is empty.
    """
    try:
        return parse_parameters(raw_query)
    except InvalidQuery:
        pass
    parameters: Parameters = {}
    for part in raw_query.split(b"&"):
        name = _LOCATING.get(part.partition(b"=")[0])
        if name is not None and name not in parameters:
            try:
                parameters |= parse_parameters(part)
            except InvalidQuery:
                parameters[name] = ""
    return parameters


def parse_timeout(text: str | None) -> float:
    """Return the seconds in a `timeout` parameter; raise `InvalidQuery`."""
    if text is None:
        return DEFAULT_TIMEOUT_S
    found = _TIMEOUT.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidQuery(
            "timeout must be an integer followed by ms, s or min, above zero and at most 15min."
        )
    return seconds


def parse_callback(text: str) -> str:
    """Return the function name of a JSONP request; raise `InvalidQuery`."""
    if len(text) > MAX_CALLBACK_CHARACTERS or not all(map(_is_identifier, text.split("."))):
        raise InvalidQuery(
            "callback must be JavaScript identifiers joined by dots, "
            f"{MAX_CALLBACK_CHARACTERS} characters at most."
        )
    if text.partition(".")[0] in _RESERVED_WORDS:
        raise InvalidQuery("callback must not begin with a reserved word of JavaScript.")
    return text


def find_token(headers: Headers, parameters: Parameters) -> str | None:
    """Return the token of a request, None if it has none.

    Raises `InvalidQuery` if it has two that differ. An `Authorization` of another scheme than
    Bearer has none.
    """
    found = {parameters.get("auth"), parameters.get("access_token")}
    for value in headers.get(b"authorization", ()):
        found.add(_bearer_token(value.decode("latin-1").strip()))
    found -= {None, ""}
    if len(found) > 1:
        raise InvalidQuery("The request carries two different tokens.")
    return found.pop() if found else None


def _bearer_token(field: str) -> str:
    scheme, *token = field.split(None, 1) or ("",)
    return token[0] if token and scheme.lower() == "bearer" else ""


def parse_choice(parameters: Parameters, name: str, *choices: str) -> str | None:
    """Return a parameter, None if it is absent; raise `InvalidQuery` if it is none of `choices`."""
    text = parameters.get(name)
    if text is not None and text not in choices:
        raise InvalidQuery(f"{name} must be {' or '.join(choices)}.")
    return text


def _is_identifier(text: str) -> bool:
    """Return whether text is an identifier of JavaScript: one of Python's (UAX 31), or with `$`."""
    return text.replace("$", "_").isidentifier()


def _decode(raw: bytes) -> str:
    try:
        return decode(raw.replace(b"+", b" "))
    except BadEncoding as error:
        raise InvalidQuery(f"The query {error.problem}.") from None
