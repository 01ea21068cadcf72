"""What the parent and its workers say to each other, by AMP over a pair of sockets.

The parent owns the endpoints, the lock of the data directory and the rules' turn; a worker serves.
Either notices the end of the other by the end of the connection.
"""

from __future__ import annotations

import heapq
import json
from typing import ClassVar, Final

import attrs
from twisted.protocols import amp

from treedbd.database.runtime import Problem
from treedbd.web.activity import ProjectActivity

_MAX_TOTALS: Final = 400
_MAX_BYTES: Final = 60_000
"""AMP carries values of less than 64 KiB."""


class Ready(amp.Command):
    """A worker tells its parent that it serves."""

    arguments: ClassVar = [(b"has_open_rules", amp.Boolean())]


class Failed(amp.Command):
    """A worker tells its parent why it cannot start, in one sentence."""

    arguments: ClassVar = [(b"reason", amp.Unicode())]


class Stop(amp.Command):
    """The parent asks a worker to end as the whole service does; it closes the connection then."""


class Reload(amp.Command):
    """The parent asks a worker to read certificates, secrets, providers and rules files again."""

    response: ClassVar = [(b"is_valid", amp.Boolean())]


class TakeRulesTurn(amp.Command):
    """A worker asks its parent to be the only one that stores rules; answered when it is."""


class GiveRulesTurn(amp.Command):
    """A worker ends its turn; of rules that it `has_stored`, all others are told.

    Answered when they have them in force.
    """

    arguments: ClassVar = [(b"project", amp.Unicode()), (b"has_stored", amp.Boolean())]


class LoadRules(amp.Command):
    """The parent asks a worker to put the stored rules of a project in force."""

    arguments: ClassVar = [(b"project", amp.Unicode())]


class Damaged(amp.Command):
    """A worker tells its parent, and that the others, of a database that it has found damaged."""

    arguments: ClassVar = [(b"label", amp.Unicode()), (b"refuses_reads", amp.Boolean())]


class FindProblems(amp.Command):
    """A worker asks its parent, or that a worker, what cannot be served as it should be."""

    response: ClassVar = [(b"problems", amp.ListOf(amp.String()))]


class FindActivity(amp.Command):
    """A worker asks its parent, or that a worker, what clients do with a project's databases."""

    arguments: ClassVar = [(b"project", amp.Unicode())]
    response: ClassVar = [(b"activity", amp.ListOf(amp.String()))]


def encode_activity(activity: ProjectActivity) -> bytes:
    """Return activity as AMP carries it: of the databases with the most requests."""
    totals = heapq.nlargest(_MAX_TOTALS, activity.totals.items(), key=_requests)
    return json.dumps(attrs.astuple(attrs.evolve(activity, totals=dict(totals)))).encode()


def _requests(total: tuple[str, tuple[int, float]]) -> int:
    return total[1][0]


def decode_activity(encoded: bytes) -> ProjectActivity:
    """Return what `encode_activity` was given."""
    for_s, totals, slowest = json.loads(encoded)
    return ProjectActivity(
        for_s,
        {label: (requests, seconds) for label, (requests, seconds) in totals.items()},
        [tuple(each) for each in slowest],
    )


def encode_problems(problems: list[Problem]) -> list[bytes]:
    """Return problems as AMP carries them; as many as one answer has room for."""
    encoded, size = [], 0
    for each in problems:
        content = json.dumps([each.project, each.database, each.reason, each.refuses_writes])
        size += len(content) + 2
        if size > _MAX_BYTES:
            break
        encoded.append(content.encode())
    return encoded


def decode_problems(encoded: list[bytes]) -> list[Problem]:
    """Return the problems that `encode_problems` was given."""
    found = []
    for content in encoded:
        project, database, reason, refuses_writes = json.loads(content)
        found.append(Problem(project, database, reason, refuses_writes))
    return found
