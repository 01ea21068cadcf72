"""The query string, parsed from the raw request target.

`&` separates, `;` does not; a parameter without a value counts; `+` is a space. Parameters that the
interface does not know are ignored, but must decode; a known one given twice is refused.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from treedbd.tree.escape import BadEscape, decode_escaped
from treedbd.tree.query import PARAMETERS as QUERY_PARAMETERS
from treedbd.tree.query import InvalidQuery

Parameters: TypeAlias = dict[str, str]

OVERRIDE: Final = "x-http-method-override"
KNOWN: Final = frozenset(
    {
        *("auth", "access_token", "auth_variable_override", "ns", "timeout", OVERRIDE),
        *("shallow", "v", "format", "print", "callback", "download", "resume"),
        *QUERY_PARAMETERS,
        *("dryRun", "writeSizeLimit", "disableTriggers"),
    }
)
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 900.0

_NONE: Final[Parameters] = {}
_TIMEOUT = re.compile(r"([0-9]{1,9})(ms|s|min)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
_MAX_CALLBACK = 128
_RESERVED_WORDS: Final = frozenset(
    {
        *("await", "break", "case", "catch", "class", "const", "continue", "debugger"),
        *("default", "delete", "do", "else", "enum", "export", "extends", "false", "finally"),
        *("for", "function", "if", "import", "in", "instanceof", "new", "null", "return"),
        *("super", "switch", "this", "throw", "true", "try", "typeof", "var", "void"),
        *("while", "with", "yield"),
    }
)
"""Of JavaScript (ECMA-262, section 12.7.2)."""


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


def parse_timeout(text: str | None) -> float:
    """Return the seconds that a `timeout` parameter grants; raise `InvalidQuery`."""
    if text is None:
        return DEFAULT_TIMEOUT_S
    found = _TIMEOUT.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidQuery(
            "timeout must be a whole number followed by ms, s or min, above zero and at most 15min."
        )
    return seconds


def parse_callback(text: str) -> str:
    """Return the function name of a JSONP request; raise `InvalidQuery`."""
    if len(text) > _MAX_CALLBACK or not all(map(_is_identifier, text.split("."))):
        raise InvalidQuery(
            "callback must be JavaScript identifiers joined by dots, "
            f"{_MAX_CALLBACK} characters at most."
        )
    if text.partition(".")[0] in _RESERVED_WORDS:
        raise InvalidQuery("callback must not begin with a reserved word of JavaScript.")
    return text


def parse_choice(parameters: Parameters, name: str, *choices: str) -> str | None:
    """Return a parameter that may take only these values, None if it is absent."""
    text = parameters.get(name)
    if text is not None and text not in choices:
        raise InvalidQuery(f"{name} must be {' or '.join(choices)}.")
    return text


def _is_identifier(text: str) -> bool:
    """Tell whether text is an identifier of JavaScript: one of Python's (UAX 31), or with `$`."""
    return text.replace("$", "_").isidentifier()


def _decode(raw: bytes) -> str:
    try:
        return decode_escaped(raw.replace(b"+", b" "))
    except BadEscape as error:
        raise InvalidQuery(f"The query {error}") from None
