"""Counts of requests and refusals for metrics: by project, method, status and code.

What a client sends never becomes a label: a project is one that is configured, or in development
mode one of the first `MAX_OTHERS` that exist; all else counts for the empty name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from twisted.web.http import SWITCHING

from treedbd.database.requests import PermissionDenied
from treedbd.http1.connection import AnsweredRequest
from treedbd.http1.interface import IHttp1Request
from treedbd.loop import Histogram
from treedbd.web.auth.jwt import BadToken
from treedbd.web.request import Question

MAX_OTHERS: Final = 100
"""Projects that are not configured, but have a name of their own here."""
_METHODS: Final = frozenset({b"GET", b"HEAD", b"PUT", b"POST", b"PATCH", b"DELETE", b"OPTIONS"})
_OTHER_METHOD: Final = b"other"
_READING: Final = (b"GET", b"HEAD")


class RequestCounts:
    """Counts since the start.

    Attributes:
        answered: requests by method, status and project.
        seconds: how long each took, streams and WebSockets not.
        sent, received: bytes of bodies by project, streams not.
        refused: refusals by the code of the error.
        denied: denials of the rules by project and operation: `read`, `stream` or `write`.
        bad_tokens: tokens that are not valid, by the reason.

    """

    def __init__(self, projects: Collection[str], *, any_project: bool = False) -> None:
        """Count by these projects; with `any_project` by the first others that exist, too."""
        self.answered: Final[Counter[tuple[bytes, int, str]]] = Counter()
        self.seconds: Final = Histogram()
        self.sent: Final[Counter[str]] = Counter()
        self.received: Final[Counter[str]] = Counter()
        self.refused: Final[Counter[str]] = Counter()
        self.denied: Final[Counter[tuple[str, str]]] = Counter()
        self.bad_tokens: Final[Counter[str]] = Counter()
        self._projects = set(projects)
        self._room = MAX_OTHERS if any_project else 0

    def label_of(self, project: str) -> str:
        """Return the name by which an existing project is counted."""
        if project not in self._projects:
            if not self._room:
                return ""
            self._room -= 1
            self._projects.add(project)
        return project

    def add(self, requests: Iterable[AnsweredRequest]) -> None:
        """Count answered requests."""
        # For each request, so with as few calls and attributes as possible.
        answered, sent, received, known = self.answered, self.sent, self.received, self._projects
        bounds, counts, total = self.seconds.bounds, self.seconds.counts, 0.0
        for memory, method, status, seconds, sent_bytes, received_bytes in requests:
            question, project, is_stream = memory.question, "", False
            if isinstance(question, Question):
                project = question.name.project
                is_stream = question.wanted.accepts_events
                if project not in known:
                    project = self.label_of(project)
            answered[method if method in _METHODS else _OTHER_METHOD, status, project] += 1
            if not is_stream and status != SWITCHING:
                counts[bisect_left(bounds, seconds)] += 1
                total += seconds
                if sent_bytes:
                    sent[project] += sent_bytes
                if received_bytes:
                    received[project] += received_bytes
        self.seconds.total += total

    def note_refusal(self, request: IHttp1Request, error: BaseException, code: str) -> None:
        """Count an error that a request is answered with, which has this code."""
        self.refused[code] += 1
        if isinstance(error, BadToken):
            self.bad_tokens[error.reason] += 1
        elif isinstance(error, PermissionDenied):
            question = request.head_memory.question
            if isinstance(question, Question):
                operation = "write"
                if question.wanted.method in _READING:
                    operation = "stream" if question.wanted.accepts_events else "read"
                self.denied[self.label_of(question.name.project), operation] += 1
