"""What is asked of a database, and what it answers: frozen records, no behaviour.

A `Write` comes from the door with everything already parsed; an `Outcome` is what was made
durable. A write that is not done raises one of the refusals below.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.tree.canonical import Tags
from treedbd.tree.edit import Edit
from treedbd.tree.event import Telling
from treedbd.tree.path import Place
from treedbd.tree.value import Json

READ_DENIED: Final = "The rules do not allow this read."
TURN_MISSED: Final = "The time of the request was over before its turn came."
READ_MISSED: Final = "The time of the request was over before the data was read."


class PermissionDenied(Exception):
    """The rules do not allow it."""


class TagDenied(PermissionDenied):
    """The condition of a write would tell its caller something that the rules keep from him."""


class TooLarge(Exception):
    """What is at the place is too large to be tagged, or shown as a whole; nothing was applied."""


class Unavailable(Exception):
    """The database cannot write now; nothing was applied. The message says why."""


class DeadlinePassed(Exception):
    """The time of the request was over before its turn came; nothing was applied."""


class ConditionFailed(Exception):
    """The tag at the place is another one; carries what is there now."""

    def __init__(self, current: Json, tag: str) -> None:
        super().__init__("ETag mismatch")
        self.current = current
        self.tag = tag


@attrs.frozen
class Caller:
    """Who asks: `auth` is what the rules know by that name, JSON; an admin is asked nothing."""

    auth: Json
    is_admin: bool = False


@attrs.frozen
class Condition:
    """The write is to be done only if the tag of `place` is one of `tags`."""

    place: Place
    tags: Tags


@attrs.frozen
class Write:
    """One write: what, under which condition, until when.

    `now` is the time of the request in milliseconds since 1970; `deadline` counts in the seconds
    of the database's clock. `wants_echo` and `wants_tag` say what the outcome is to tell; with
    `must_tag` nothing is to be done where it is known that no tag could be told.
    """

    edit: Edit
    now: int
    caller: Caller
    condition: Condition | None = None
    deadline: float | None = None
    wants_echo: bool = True
    wants_tag: bool = False
    must_tag: bool = False


@attrs.frozen
class Outcome:
    """What became of a write: the edit with server values resolved, and what watchers are told.

    `echo` is what a PUT now reads as, or what a PATCH sent; `tag` is the tag of the new value at
    the written place; both are None where they were not wanted. A write that changed nothing (a
    PATCH without members) tells nothing.
    """

    edit: Edit
    telling: Telling | None
    echo: Json
    tag: str | None
