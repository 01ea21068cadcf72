"""The options of a query, and the parameters of the interface that they become.

The interface expects JSON, but a shell removes quotation marks, so other text is sent as a JSON
string.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import is_json

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
    """Call the parameters in the sentences of errors by their options, in a `with` block."""
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
