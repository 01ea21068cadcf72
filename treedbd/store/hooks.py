"""Hooks: what is to be called when data changes, as rows beside the tree of a database.

A hook has a pattern of paths and kinds of events; whom it calls is its URL, or a program that reads
its events (`treedb run`). Hooks that an admin makes are rows, so that they apply from an exact
number of the log on, in all processes; those of the configuration are given to the databases by the
service. Each hook has a cursor in the change log, `hook-` and its name.

    HOOK_FIRST          the stamp: random bytes that are others after each change of hooks
    HOOK_FIRST + d      the hooks
    HOOK_FIRST + r      the programs that read the events of hooks, each by a name it has chosen

These rows are not data: they are not served, indexed or counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import orjson

from treedbd.store.engine import DamagedRow, ReadView, Row, Transaction
from treedbd.store.rows import seal, unseal
from treedbd.tree.pattern import InvalidPattern, PathPattern, parse_pattern

HOOK_FIRST: Final = b"\x06h"
HOOK_END: Final = b"\x06i"
"""All rows of hooks are in this range."""
HOOK_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
"""The names that hooks may have."""
CURSOR_PREFIX: Final = "hook-"
_DEFINITIONS: Final = HOOK_FIRST + b"d"
_READERS: Final = HOOK_FIRST + b"r"

Kind: TypeAlias = Literal["created", "updated", "deleted"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Form: TypeAlias = Literal["event", "functions-1", "functions-2"]
"""What is sent: an event as it is documented, or as the functions emulator reads it (v1, v2)."""
FORMS: Final[tuple[Form, ...]] = get_args(Form)


@attrs.frozen
class Hook:
    """A hook.

    Attributes:
        name: its name, unique in its database.
        on: the places whose events it is for.
        kinds: the kinds of these events.
        url: what is called; None for a hook whose events a program reads.
        form: what is sent.
        secrets: sign what is sent, each by itself; none if there are none.
        trigger: the name of a function; empty for other forms.
        created_ms: when it was made, in milliseconds since 1970; 0 for one of the configuration.
        is_configured: whether it is of the configuration, so that it is not stored.

    """

    name: str
    on: PathPattern
    kinds: frozenset[Kind]
    url: str | None = None
    form: Form = "event"
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    trigger: str = ""
    created_ms: int = 0
    is_configured: bool = False

    @property
    def cursor(self) -> str:
        """The name of its cursor in the change log."""
        return CURSOR_PREFIX + self.name


def read_stamp(view: ReadView) -> bytes | None:
    """Return bytes that are others after each change of the hooks; None if there were never any."""
    return view.get(HOOK_FIRST)


def read_hooks(view: ReadView) -> list[Hook]:
    """Return the stored hooks in the order of their names; raise `DamagedRow`."""
    stored = view.get(_DEFINITIONS)
    if stored is None:
        return []
    try:
        return [decode_hook(json) for json in orjson.loads(unseal(_DEFINITIONS, stored))]
    except DamagedRow:
        raise
    except (ValueError, LookupError, TypeError, InvalidPattern):
        raise DamagedRow("The hooks of the database cannot be read.") from None


def write_hooks(transaction: Transaction, hooks: Iterable[Hook], stamp: bytes) -> None:
    """Store all hooks; `stamp` differs from all before."""
    ordered = sorted(hooks, key=lambda hook: hook.name)
    content = orjson.dumps([encode_hook(hook) for hook in ordered])
    transaction.put(_DEFINITIONS, seal(_DEFINITIONS, content))
    transaction.put(HOOK_FIRST, seal(HOOK_FIRST, stamp.hex().encode()))


def hook_rows(view: ReadView) -> list[Row]:
    """Return the rows of the hooks and their stamp, as they are stored."""
    found = ((key, view.get(key)) for key in (HOOK_FIRST, _DEFINITIONS))
    return [(key, stored) for key, stored in found if stored is not None]


def replace_hook_rows(transaction: Transaction, rows: Iterable[Row]) -> None:
    """Replace the hooks and their stamp by rows of another database; raise `DamagedRow`."""
    new = dict(rows)
    if not new.keys() <= {HOOK_FIRST, _DEFINITIONS}:
        raise DamagedRow("A row is not one of hooks.")
    for key, stored in new.items():
        unseal(key, stored)
    for key in (HOOK_FIRST, _DEFINITIONS):
        if key in new:
            transaction.put(key, new[key])
        else:
            transaction.delete(key)


def read_hook_readers(view: ReadView) -> dict[str, str]:
    """Return which program reads the events of each hook, by its name; raise `DamagedRow`."""
    stored = view.get(_READERS)
    if stored is None:
        return {}
    try:
        readers: dict[str, str] = orjson.loads(unseal(_READERS, stored))
        return {str(hook): str(reader) for hook, reader in readers.items()}
    except DamagedRow:
        raise
    except (ValueError, AttributeError):
        raise DamagedRow("The readers of hooks cannot be read.") from None


def write_hook_readers(transaction: Transaction, readers: Mapping[str, str]) -> None:
    """Store which program reads the events of each hook."""
    transaction.put(_READERS, seal(_READERS, orjson.dumps(dict(readers))))


def check_hooks(view: ReadView) -> Iterable[str]:
    """Yield a sentence if the hooks, or their stamp, cannot be read."""
    try:
        read_hooks(view)
        stamp = read_stamp(view)
        if stamp is not None:
            unseal(HOOK_FIRST, stamp)
        read_hook_readers(view)
    except DamagedRow as error:
        yield str(error)


def encode_hook(hook: Hook) -> dict[str, Any]:
    """Return a hook as JSON, of which `decode_hook` makes it again."""
    return {
        "name": hook.name,
        "on": hook.on.text,
        "kinds": sorted(hook.kinds),
        "url": hook.url,
        "form": hook.form,
        "secrets": list(hook.secrets),
        "trigger": hook.trigger,
        "created_ms": hook.created_ms,
    }


def decode_hook(json: Any) -> Hook:
    """Return an encoded hook; raise ValueError, LookupError or TypeError for other JSON."""
    return Hook(
        name=json["name"],
        on=parse_pattern(json["on"]),
        kinds=frozenset(json["kinds"]),
        url=json["url"],
        form=json["form"],
        secrets=tuple(json["secrets"]),
        trigger=json["trigger"],
        created_ms=int(json["created_ms"]),
    )
