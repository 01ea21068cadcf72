"""The options of a query, and the parameters of the interface that they stand for.

The interface takes JSON; on a command line its quotation marks are a nuisance, so a text that is no
JSON stands for itself, as a string.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Final

from treedbd.cli.options import Parser, is_json

_BOUNDS: Final = {
    "--start-at": "from this value on",
    "--start-after": "behind this value",
    "--end-at": "up to this value",
    "--end-before": "before this value",
    "--equal-to": "this value alone",
}
_BY_KEY: Final = '"$key"'
_LIMITS: Final = {"--limit-to-first": "the first N", "--limit-to-last": "the last N"}


def query_options() -> ArgumentParser:
    """Return the options that make a read a query."""
    parser = Parser(add_help=False)
    group = parser.add_argument_group("which children, and in which order")
    group.add_argument(
        "--order-by", metavar="CHILD", help="a child's path, or $key, $value or $priority"
    )
    for name, summary in _LIMITS.items():
        group.add_argument(name, metavar="N", help=summary)
    for name, summary in _BOUNDS.items():
        group.add_argument(name, metavar="VALUE", help=summary)
    return parser


def query_parameters(arguments: Namespace) -> dict[str, str]:
    """Return the parameters for the options that were given."""
    found: dict[str, str] = {}
    for option in ("--order-by", *_LIMITS, *_BOUNDS):
        attribute = option[2:].replace("-", "_")
        value = getattr(arguments, attribute)
        if value is None:
            continue
        first, *more = attribute.split("_")
        name = first + "".join(map(str.capitalize, more))
        if option == "--order-by":
            value = _as_string(value)
        elif option in _BOUNDS:
            # What bounds an order by key is a key, be it one that looks like a number.
            value = _as_string(value) if found.get("orderBy") == _BY_KEY else _as_bound(value)
        found[name] = value
    return found


def _as_string(text: str) -> str:
    return text if text.startswith('"') and is_json(text) else json.dumps(text)


def _as_bound(text: str) -> str:
    """Return a bound as it is if it is JSON, or a value and a key; else the text as a string."""
    value, comma, key = text.rpartition(',"')
    if is_json(text) or (comma and is_json(value) and is_json(f'"{key}')):
        return text
    return json.dumps(text)
