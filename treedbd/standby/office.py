"""The office of a running daemon: whether it is the first, and what it does when it was superseded.

A first remembers the standbys that have followed it (`Term.peers`). When it starts, before it
accepts writes, and every few seconds while it runs, it asks those whose address it knows for their
term. One with a higher term has been promoted, or follows one that was: then this daemon refuses
writes for good (`superseded`), and its next start is refused. A standby that is promoted also says
so itself, if it can reach the first. A peer that cannot be reached says nothing: the first goes on.

A standby that is promoted while the first runs has all that this acknowledged, if it receives what
is in the logs when its notice is answered: the answer waits until the writes that were accepted
before are durable.

Several processes may serve one data directory. The file of the term has what counts; each change
is made to what is in it, under a lock, and each process reads it again every `LOOK_S`. So the
answer also waits until the others must have read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import attrs
import orjson
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.data_directory import READER_FILE
from treedbd.database.log_reader import write_rows
from treedbd.database.requests import Outcome, Unavailable, Write
from treedbd.database.runtime import Problem, Runtime
from treedbd.errors import OperatorError
from treedbd.files import open_private
from treedbd.standby.client import reason_of
from treedbd.standby.term import (
    TERM_FILE,
    Peer,
    Term,
    ensure_term,
    parse_shown,
    read_term,
    write_term,
)
from treedbd.store.engine import Transaction

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier

CHECK_S: Final = 5.0
"""Seconds between two checks."""
LOOK_S: Final = 0.5
"""Seconds after which one of several processes reads the file again."""
ANSWER_S: Final = 3.0
"""Seconds that the peers have to answer."""
SEEN_S: Final = 3600.0
"""A peer that is met again is stored after this time, unless its address is another."""
CHECKING: Final = "This server first asks its standbys whether one was promoted; try again soon."
LOCK_FILE: Final = f"{READER_FILE}term"
"""What is locked while the file is changed; it is not removed, so that all lock the same one."""
TERM_PATH: Final = "/.standby/term.json"

AskPeer: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns the document at a URL; raises any exception if it cannot."""
ChangeTerm: TypeAlias = Callable[[Term], Term]


class Superseded(OperatorError):
    """A first that must not serve, because another one was promoted in its place."""

    def __init__(self, folder: pathlib.Path, url: str | None) -> None:
        where = "another daemon" if url is None else url
        super().__init__(
            f"The data directory {folder}",
            f"was superseded: {where} was promoted and has newer data",
            f"make it a standby of that one (standby_of), or run treedb promote --data {folder} "
            "--force to serve the old data all the same",
        )


class NotPromoted(OperatorError):
    """A directory of a standby that is to serve as a first, although it was not promoted."""

    def __init__(self, folder: pathlib.Path, url: str | None) -> None:
        super().__init__(
            f"The data directory {folder}",
            f"is that of a standby of {url or 'another daemon'}, and was not promoted",
            f"set standby_of, or run treedb promote --data {folder} to accept writes here",
        )


def refusal_of(term: Term) -> str:
    """Return the sentence by which a first that was superseded refuses writes."""
    if term.first_url is None:
        return "This server was superseded by another one: write there."
    return f"This server was superseded by {term.first_url}: write there."


class Office:
    """The term of a data directory, in one process that serves it; of the reactor's thread.

    Attributes:
        term: what is known of it.
        is_standby: whether this process follows a first; then it checks no peers.
        is_finished: whether this was superseded, and all that was ever accepted is in the logs.

    """

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        runtime: Runtime,
        catalog: Catalog,
        ask: AskPeer,
        *,
        is_shared: bool = False,
    ) -> None:
        """Keep the term of `folder`, which `catalog` serves; `ask` is for the peers.

        Other processes serve it too if it `is_shared`. Begin with `load`.
        """
        self.term = Term()
        self.is_standby = self.is_finished = False
        self._folder, self._runtime, self._ask = folder, runtime, ask
        self._catalog, self._is_shared = catalog, is_shared
        self._asked_at = -CHECK_S
        self._gate = runtime.gate
        self._due: IDelayedCall | None = None
        self._unreachable: set[str] = set()
        self._is_started = self._is_stopped = False
        self._announced = 0

    @property
    def is_superseded(self) -> bool:
        """Whether this was a first, and another one was promoted."""
        return self.term.role == "superseded"

    def load(self) -> None:
        """Read the file; raise `TermUnreadable`.

        Raises `Superseded` and `NotPromoted`, too, unless this is a standby.
        """
        self.term = read_term(self._folder)
        if self.is_standby:
            return
        if self.is_superseded:
            raise Superseded(self._folder, self.term.first_url)
        if self.term.role == "standby":
            raise NotPromoted(self._folder, self.term.first_url)

    def start(self) -> None:
        """Check the peers now, before writes are accepted, and again and again.

        A second call does nothing.
        """
        if self._is_started:
            return
        self._is_started = True
        if not self.is_standby and any(each.url for each in self.term.peers):
            self._gate.refusal = CHECKING
        Deferred.fromCoroutine(self._check()).addErrback(self._fail)

    def stop(self) -> None:
        """Check no longer."""
        self._is_stopped = True
        if self._due is not None and self._due.active():
            self._due.cancel()

    async def change(self, change: ChangeTerm) -> Term:
        """Change the term durably; raise `Unavailable` if it cannot be stored."""
        changed: list[Term] = []
        await self._runtime.run_in_thread(partial(self._change, change, changed))
        if not changed:
            raise Unavailable("The term of the data directory cannot be stored.")
        self._take(changed[0])
        return self.term

    async def meet(self, standby: str, url: str | None) -> None:
        """Remember a standby, durably; raises as `change`."""
        peer = Peer(standby, url, self._runtime.now_ms())
        known = next((each for each in self.term.peers if each.id == standby), None)
        is_known = known is not None and (url is None or url == known.url)
        if is_known and known is not None and peer.seen_ms - known.seen_ms < SEEN_S * 1000:
            return
        await self.change(lambda term: term.with_peer(peer))

    async def supersede(
        self, term: int, url: str | None, by: str = "", *, yields: bool = False
    ) -> bool:
        """Refuse writes from now on if another daemon is the first in a higher term.

        If it `yields`, also in an equal one. Return whether this accepts no writes because of that
        daemon, whose id is `by` if it is known, and not because of another one. Then that is
        durable, and so is what was accepted before.
        """
        own = self.term
        if (
            own.role != "first"
            and term <= own.term
            and not (term == own.term and own.is_after(by, url))
        ):
            return False
        if own.role == "standby":
            return True
        if own.role == "first":
            if term + yields <= own.term:
                return False
            if not await self._step_down(term, url, by, yields=yields):
                return False
        elif term > own.term or (by and not own.by):
            await self.change(_Supersede(term, url, by, self._runtime.now_ms()))
        await self._finish()
        self._announce(term)
        return True

    async def _step_down(self, term: int, url: str | None, by: str, *, yields: bool) -> bool:
        before = self._gate.refusal
        # At once: what is acknowledged from now on would be lost.
        self._gate.refusal = refusal_of(attrs.evolve(self.term, first_url=url))
        try:
            await self.change(_Supersede(term, url, by, self._runtime.now_ms(), yields=yields))
        except Unavailable:
            self._log.error("That this server was superseded cannot be stored.")
            raise
        if not self.is_superseded:
            self._gate.refusal = before  # the term was changed meanwhile
        return self.is_superseded

    def _announce(self, term: int) -> None:
        """Log once that this was superseded."""
        if self._announced == term:
            return
        self._announced = term
        self._log.critical(
            "This server was superseded: {url} was promoted (term {term}). It refuses writes. "
            "Make it a standby of that one, or run treedb promote --force.",
            url=self.term.first_url or "another one",
            term=term,
        )

    async def _finish(self) -> None:
        """Return when all that was accepted before this was superseded is in the logs."""
        if self._is_shared and not self.is_finished:
            await deferLater(self._runtime.clock, 2 * LOOK_S)
        await finish_writes(self._catalog, self._runtime)
        self.is_finished = self.is_superseded

    def problems(self) -> list[Problem]:
        """Return what is wrong for the health of the service."""
        if not self.is_superseded:
            return []
        return [Problem("", None, refusal_of(self.term))]

    def describe(self) -> dict[str, Any]:
        """Return what a peer may know."""
        term = self.term
        shown: dict[str, Any] = {"term": term.term, "id": term.id, "role": term.role}
        if term.first_url is not None and term.role != "first":
            shown["url"] = term.first_url
        return shown

    # The file.

    def _change(self, change: ChangeTerm, changed: list[Term]) -> None:
        """Change what is stored; in a thread. Nothing is in `changed` if that has failed."""
        try:
            with _locked(self._folder):
                stored = ensure_term(self._folder, self._runtime.entropy)
                term = change(stored)
                if term != stored:
                    write_term(self._folder, term)
        except (OSError, OperatorError) as error:
            self._log.error("{file} cannot be changed: {error}", file=TERM_FILE, error=error)
            return
        changed.append(term)

    def _take(self, term: Term) -> None:
        """Know a term from now on."""
        was = self.term.role
        self.term = term
        if term.role == "superseded":
            self._gate.refusal = refusal_of(term)
        elif was == "superseded" and term.role == "first":
            self._gate.refusal = None
            self.is_finished = False

    # Peers.

    def _fail(self, failure: Any) -> None:
        self._log.failure("The standbys cannot be asked whether one was promoted.", failure)
        self._end_check()

    def _end_check(self) -> None:
        if self._gate.refusal == CHECKING:
            self._gate.refusal = None
            self._catalog.run_left()
        if not self._is_stopped:
            pause = LOOK_S if self._is_shared else CHECK_S
            self._due = self._runtime.clock.callLater(pause, self._check_again)

    def _check_again(self) -> None:
        Deferred.fromCoroutine(self._check()).addErrback(self._fail)

    async def _check(self) -> None:
        await self._read_again()
        now = self._runtime.clock.seconds()
        is_first = self.term.role == "first" and not self.is_standby
        if is_first and now >= self._asked_at + CHECK_S:
            self._asked_at = now
            asking = [
                Deferred.fromCoroutine(self._ask_peer(each, each.url))
                for each in self.term.peers
                if each.url is not None
            ]
            await DeferredList(asking, consumeErrors=True)
        self._end_check()

    async def _read_again(self) -> None:
        """Know what another process has stored."""
        found: list[Term] = []

        def read() -> None:
            try:
                found.append(read_term(self._folder))
            except OperatorError:
                return  # what was known counts

        await self._runtime.run_in_thread(read)
        if found and found[0].id and found[0] != self.term:
            self._take(found[0])
            if self.is_superseded:
                await self._finish()

    async def _ask_peer(self, peer: Peer, url: str) -> None:
        """Ask one peer; a failure says nothing, and is logged once."""
        asking = Deferred.fromCoroutine(_await(self._ask(url.rstrip("/") + TERM_PATH)))
        try:
            answer = await asking.addTimeout(ANSWER_S, self._runtime.clock)
            found = parse_shown(orjson.loads(answer))
        except Exception as error:
            if peer.id not in self._unreachable:
                self._unreachable.add(peer.id)
                self._log.warn(
                    "The standby {url} cannot be asked whether it was promoted ({error}).",
                    url=url,
                    error=reason_of(error),
                )
            return
        self._unreachable.discard(peer.id)
        if found.id == peer.id:
            is_first = found.role == "first"
            first, by = (url, found.id) if is_first else (found.first_url, "")
            await self.supersede(found.term, first, by)


async def finish_writes(catalog: Catalog, runtime: Runtime) -> None:
    """Return when all writes of databases that are under way now are durable, or refused."""
    for database in catalog.find_writing():
        with contextlib.suppress(Exception):  # then its writes have failed, too
            await write_rows(database, runtime, _Barrier())


@attrs.frozen
class _Barrier:
    """Do nothing, after all writes before it."""

    is_local: ClassVar[bool] = True

    def __call__(self, _: WriteApplier, __: Transaction, write: Write) -> Outcome:
        return Outcome(write.edit, None, None, None)


async def _await(awaitable: Awaitable[bytes]) -> bytes:
    return await awaitable


@attrs.frozen
class _Supersede:
    """Change the term to that after another daemon was promoted."""

    term: int
    url: str | None
    by: str
    now_ms: int
    yields: bool = False

    def __call__(self, own: Term) -> Term:
        if own.role == "standby" or own.term > self.term:
            return own
        if own.role == "first":
            if own.term == self.term and not self.yields:
                return own
            url = self.url  # `first_url` is that of another one
        else:
            url = self.url or own.first_url
        return own.to_superseded(url, self.now_ms, self.term, self.by)


@contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Be the one process that changes the file in `folder`; waits for others."""
    descriptor = open_private(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
