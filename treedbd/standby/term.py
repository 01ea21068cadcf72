"""The term of a data directory: whether its daemon is the first of several, and since when.

A standby that is promoted begins a new term, with a number above that of the first which it
followed. So of two daemons which both accept writes, the one with the lower number was superseded,
and it can find that out by comparing numbers. The file `treedb.term` in the data directory has the
term, the role, an id of the directory that is made once, and the daemons that have been met: the
standbys of a first, the first of a standby. A directory without that file is a first in term 1.

Files are read and written in place: in a thread, or before the reactor runs.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import orjson

from treedbd.errors import OperatorError
from treedbd.files import write_atomically

TERM_FILE: Final = "treedb.term"
MAX_PEERS: Final = 100
"""Other daemons that are remembered; those that were met last are kept."""
ID_BYTES: Final = 16
_MAX_BYTES: Final = 1_048_576
_MAX_TERM: Final = 2**53

Role: TypeAlias = Literal["first", "standby", "superseded"]
"""`first` accepts writes; `standby` follows a first; `superseded` was a first until another one was
promoted, and accepts none."""


class TermUnreadable(OperatorError):
    """The file of the term cannot be read, so it is not known whether writes may be accepted."""

    def __init__(self, file: pathlib.Path, reason: str) -> None:
        super().__init__(
            file,
            f"cannot be read ({reason}), so it is not known whether this daemon may accept writes",
            "restore it, or remove it if no other daemon has been promoted in its place",
        )


@attrs.frozen
class Peer:
    """Another daemon: the id of its data directory, its URL if it is known, when it was met.

    A first is an `is_other` if it was in the place of another one without a promotion.
    """

    id: str
    url: str | None = None
    seen_ms: int = 0
    is_other: bool = False


@attrs.frozen
class Term:
    """What the file says.

    Attributes:
        term: the number, from 1.
        id: that of the data directory, in hexadecimal digits; "" before the file is written.
        role: what the daemon of this directory is.
        changed_ms: when the term or the role changed, in milliseconds since 1970; 0 before.
        peers: the other daemons, the one that was met last at the end.
        first_url: the address of the first, of a standby or of what was superseded, if known; of a
            first that was promoted, that of the one before it.
        by: the id of the daemon that superseded this one; "" if that is not known.

    """

    term: int = 1
    id: str = ""
    role: Role = "first"
    changed_ms: int = 0
    peers: tuple[Peer, ...] = ()
    first_url: str | None = None
    by: str = ""

    def with_peer(self, peer: Peer) -> Term:
        """Return the term with a daemon that was met; without a URL it keeps the one it had."""
        known = next((each for each in self.peers if each.id == peer.id), None)
        if peer.url is None and known is not None:
            peer = attrs.evolve(peer, url=known.url)
        others = [each for each in self.peers if each.id != peer.id]
        return attrs.evolve(self, peers=tuple([*others, peer][-MAX_PEERS:]))

    def knows(self, peer: str, term: int) -> bool:
        """Return whether a first in this term is in the place of the one before by a promotion.

        Another one may have an empty directory, or one that was restored, by mistake.
        """
        if term > self.term or peer == self.by:
            return True
        known = next((each for each in self.peers if each.id == peer), None)
        return not (self.peers if known is None else known.is_other)

    def to_first(self, term: int, now_ms: int) -> Term:
        """Return what it is after a promotion: the first, in a term of this number.

        `first_url` is from then on that of the first in whose place it is.
        """
        return attrs.evolve(self, term=term, role="first", changed_ms=now_ms)

    def to_standby(self, term: int, first_url: str, now_ms: int) -> Term:
        """Return what it is as a standby of the first at a URL, in the term of that."""
        is_same = self.role == "standby" and self.term == term
        changed_ms = self.changed_ms if is_same else now_ms
        return attrs.evolve(
            self, term=term, role="standby", changed_ms=changed_ms, first_url=first_url
        )

    def to_superseded(
        self, first_url: str | None, now_ms: int, term: int = 0, by: str = ""
    ) -> Term:
        """Return what it is when another one was promoted, in a `term` that is known from then on.

        If this one is promoted again, its term has to be a higher one.
        """
        return attrs.evolve(
            self,
            term=max(term, self.term),
            role="superseded",
            changed_ms=now_ms,
            first_url=first_url,
            by=by,
        )

    def is_after(self, by: str, url: str | None) -> bool:
        """Return whether the daemon in whose favour this one has stepped down is that of a notice.

        That has an id, `by`, and perhaps a `url`; what is not known is not compared.
        """
        known = self.by if self.role == "superseded" else self.peers[-1].id if self.peers else ""
        if known and by:
            return known == by
        return url is None or self.first_url in {None, url}


def read_term(folder: pathlib.Path) -> Term:
    """Return the term of a data directory; raise `TermUnreadable`.

    Without a file it is that of a first in term 1, without an id.
    """
    file = folder / TERM_FILE
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES)
        return _decode(orjson.loads(content))
    except FileNotFoundError:
        return Term()
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not what this program writes"
        raise TermUnreadable(file, reason or "unknown error") from None


def write_term(folder: pathlib.Path, term: Term) -> None:
    """Replace the file; a crash at any moment leaves the one or the other. Raises OSError."""
    content = orjson.dumps({"treedb-term": 1, **attrs.asdict(term)}, option=orjson.OPT_INDENT_2)
    write_atomically(folder / TERM_FILE, content + b"\n")


def ensure_term(folder: pathlib.Path, entropy: Callable[[int], bytes]) -> Term:
    """Return the term of a data directory, which has an id and a file from now on.

    Raises `TermUnreadable` or OSError.
    """
    term = read_term(folder)
    if not term.id:
        term = attrs.evolve(term, id=entropy(ID_BYTES).hex())
        write_term(folder, term)
    return term


def parse_shown(json: Any) -> Term:
    """Return the term that another daemon shows; raise LookupError or TypeError."""
    url = json.get("url") if isinstance(json, dict) else None
    if type(json["term"]) is not int or not (url is None or _is_text(url)):
        raise TypeError("A member has another type.")
    return Term(term=json["term"], id=str(json["id"]), role=json["role"], first_url=url)


def _decode(json: Any) -> Term:
    """Return what the file says; raise ValueError, LookupError or TypeError for anything else."""
    peers = tuple(_decode_peer(each) for each in json["peers"])
    term = Term(
        term=json["term"],
        id=json["id"],
        role=json["role"],
        changed_ms=json["changed_ms"],
        peers=peers,
        first_url=json["first_url"],
        by=json.get("by", ""),
    )
    if json["treedb-term"] != 1 or term.role not in get_args(Role):
        raise ValueError("This is a file of another version.")
    is_number = type(term.term) is int and 0 < term.term <= _MAX_TERM
    if not (is_number and type(term.changed_ms) is int and _is_text(term.id) and _is_text(term.by)):
        raise TypeError("A member has another type.")
    if not (term.first_url is None or _is_text(term.first_url)):
        raise TypeError("A URL is not a string.")
    return term


def _decode_peer(json: Any) -> Peer:
    peer = Peer(json["id"], json["url"], json["seen_ms"], json.get("is_other", False))
    is_right = _is_text(peer.id) and (peer.url is None or _is_text(peer.url))
    if not (is_right and type(peer.seen_ms) is int and type(peer.is_other) is bool):
        raise TypeError("A member has another type.")
    return peer


def _is_text(value: object) -> bool:
    return isinstance(value, str)
