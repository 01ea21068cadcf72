"""Server values: objects `{".sv": …}` in a body that the server replaces when it writes.

`{".sv": "timestamp"}` becomes the time of the request in milliseconds; `{".sv": {"increment": n}}`
becomes the number that stands at its place plus `n`. Bodies are resolved as JSON, before they are
brought into normal form, so that what is echoed and what is written cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from treedbd.tree import number
from treedbd.tree.path import PRIORITY, VALUE, Path

PLACEHOLDER: Final = ".sv"

Current: TypeAlias = Callable[[Path, bool], object] | None
"""Asked with a path and whether its priority is meant: the leaf or priority there, or None.

Where nobody may be asked, increments stay as they were sent.
"""


@attrs.frozen
class Timestamp:
    """Becomes the time of the request."""


@attrs.frozen
class Increment:
    """Becomes the present number at its place plus `by`."""

    by: int | float


Placeholder: TypeAlias = Timestamp | Increment


def parse_placeholder(json: dict[str, Any]) -> Placeholder:
    """Parse an object with a `.sv` member; raise `ValueError` for one that means nothing."""
    content = json[PLACEHOLDER]
    if len(json) > 1:
        raise ValueError(f"Beside {PLACEHOLDER} nothing may stand.")
    if content == "timestamp":
        return Timestamp()
    if isinstance(content, dict) and list(content) == ["increment"]:
        by = content["increment"]
        if isinstance(by, int | float) and not isinstance(by, bool):
            return Increment(number.settle(by))
    raise ValueError(f'{PLACEHOLDER} must be "timestamp" or {{"increment": <number>}}.')


def resolve(json: Any, path: Path, now: int, current: Current) -> Any:
    """Return a body with its placeholders replaced.

    `json` has been accepted by `body.normalise`; `path` is where it is written; `now` is in
    milliseconds since 1970. Raises `ValueError` where a sum is no finite number.
    """
    if isinstance(json, list):
        return [resolve(item, (*path, str(at)), now, current) for at, item in enumerate(json)]
    if not isinstance(json, dict):
        return json
    if PLACEHOLDER in json:
        return fill(parse_placeholder(json), path, False, now, current)
    return {key: _resolve_member(key, item, path, now, current) for key, item in json.items()}


def fill(what: Placeholder, path: Path, of_priority: bool, now: int, current: Current) -> Any:
    """Return what one placeholder becomes at the node `path` or at its priority."""
    if isinstance(what, Timestamp):
        return now
    if current is None:
        return {PLACEHOLDER: {"increment": what.by}}
    present = current(path, of_priority)
    if isinstance(present, bool) or not isinstance(present, int | float):
        return what.by
    return number.add(present, what.by)


def _resolve_member(key: str, item: Any, path: Path, now: int, current: Current) -> Any:
    if key == PRIORITY:
        if isinstance(item, dict):
            return fill(parse_placeholder(item), path, True, now, current)
        return item
    return resolve(item, path if key == VALUE else (*path, key), now, current)
