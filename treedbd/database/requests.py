"""Requests to a database and their outcomes: frozen records.

A `Write` arrives with everything parsed; an `Outcome` is what was made durable. A write that is not
done raises one of `errors`.
"""

from __future__ import annotations

import attrs

from treedbd.tree.edit import Edit
from treedbd.tree.etag import ETagSet
from treedbd.tree.event import Commit
from treedbd.tree.types import Json, Place


@attrs.frozen
class Caller:
    """Who sends a request: rules read `auth`; for an admin they are not evaluated."""

    auth: Json
    is_admin: bool = False


@attrs.frozen
class Condition:
    """The write is done only if the tag of `place` is one of `etags`."""

    place: Place
    etags: ETagSet


@attrs.frozen
class Write:
    """One write: what, under which condition, until when.

    `now` is the time of the request in milliseconds since 1970; `deadline` is in seconds of the
    database's clock. `wants_echo` and `wants_etag` say what the outcome is to contain; with
    `must_have_etag` nothing is done if it is known that there can be no tag.
    """

    edit: Edit
    now: int
    caller: Caller
    condition: Condition | None = None
    deadline: float | None = None
    wants_echo: bool = True
    wants_etag: bool = False
    must_have_etag: bool = False


@attrs.frozen
class Outcome:
    """What a write did: the edit with server values resolved, and what watchers receive.

    `echo` is what a PUT now reads as, or what a PATCH sent; `etag` is the tag of the new value at
    the written place; both are None if they were not wanted. A write that changed nothing (a PATCH
    without members) has no `commit`.
    """

    edit: Edit
    commit: Commit | None
    echo: Json
    etag: str | None
