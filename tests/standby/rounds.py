"""A first and a standby that change places under writes, are killed and are cut from each other.

`Rounds` writes a count at whichever is the first, one number after the other, and does something to
the two daemons meanwhile. After each round these must hold:

- What the standby has shown before is there after its promotion: it had been durable.
- If the first could receive the notice of the promotion, all that it had acknowledged is there.
- There is no hole: who has a number has all that were acknowledged before it.
- A stream at the standby has had each number once, in order, also across its promotion.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import threading
from typing import Any, Final

from tests.access import Tree, at
from tests.closing import Closing
from tests.daemon import Daemon
from tests.standby.pair import PROJECT, ask, make_daemon, until
from tests.tcp_proxy import TcpProxy

SETTING: Final = "standby_of = "


class Place(Closing):
    """One of the two daemons, and the proxy by which the other one reaches it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.daemon: Daemon = make_daemon(folder)
        self.proxy = TcpProxy(0)
        self.url = f"http://127.0.0.1:{self.proxy.port}"

    def close(self) -> None:
        """End it."""
        self.daemon.close()
        self.proxy.close()

    def start(self, standby_of: str | None = None) -> None:
        """Start it as the first, or as a standby."""
        config = self.daemon.folder / "treedb.toml"
        lines = [
            each for each in config.read_text().splitlines() if not each.startswith("standby_")
        ]
        if standby_of is not None:
            lines = [f'{SETTING}"{standby_of}"', f'standby_url = "{self.url}"', *lines]
        config.write_text("\n".join(lines))
        self.daemon.start()
        self.proxy.lead_to(self.daemon.port)

    def tree(self) -> Tree:
        """Return a client."""
        return Tree(self.daemon, PROJECT)

    def find_numbers(self) -> list[int] | None:
        """Return the numbers that it has; None while its database is replaced by a base."""
        with self.tree() as tree:
            found = tree.request("GET", at("/log.json", tree.admin))
            if found.status == 503:
                return None
            assert found.status == 200, found
            return sorted(int(each[1:]) for each in found.json or {})

    def numbers(self) -> list[int]:
        """Return the numbers that it has."""
        numbers = self.find_numbers()
        assert numbers is not None
        return numbers


class Writer:
    """Writes numbers at the first, until it is stopped; a number is written once.

    Attributes:
        acknowledged: those that were acknowledged.

    """

    def __init__(self, first: Place, begin: int) -> None:
        self.acknowledged: list[int] = []
        self._first, self._next = first, begin
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def await_more(self, count: int = 10) -> None:
        """Wait until more writes were acknowledged."""
        enough = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) > enough, "writes")

    def stop(self) -> int:
        """Stop; return the number that would be next."""
        self._is_over.set()
        self._thread.join()
        return self._next

    def begin_at(self, number: int) -> None:
        """Set the number that would be next, since another writer has written."""
        self._next = number

    def _run(self) -> None:
        # What is refused, or cut off, may be stored or not; it is not written again.
        with contextlib.suppress(OSError, AssertionError), self._first.tree() as tree:
            while not self._is_over.is_set():
                number, self._next = self._next, self._next + 1
                body = f'{{"log/k{number}": true, "n": {number}}}'
                if tree.request("PATCH", at("/.json", tree.admin), body).status != 200:
                    return
                self.acknowledged.append(number)


class Reader:
    """A stream of the count at a standby."""

    def __init__(self, place: Place) -> None:
        self.numbers: list[int] = []
        self._tree = place.tree()
        self._stream = self._tree.listen(at("/n.json", self._tree.admin))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AssertionError, ValueError):
            while True:
                event: Any = self._stream.next()
                if event.kind == "put" and event.data["data"] is not None:
                    self.numbers.append(event.data["data"])

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._tree.close()


class Rounds(Closing):
    """Rounds with two daemons."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.first, self.standby = Place(folder / "a"), Place(folder / "b")
        self.first.start()
        self.standby.start(self.first.url)
        self._known: list[int] = []
        self._next = 0

    @property
    def count(self) -> int:
        """How many numbers were acknowledged and are there."""
        return len(self._known)

    def close(self) -> None:
        """End both."""
        self.first.close()
        self.standby.close()

    def run(self, kind: str) -> None:
        """Do one round."""
        self._await_complete()
        writer = Writer(self.first, self._next)
        writer.await_more()
        try:
            getattr(self, f"_{kind}")(writer)
        finally:
            self._next = writer.stop()
        self._known += writer.acknowledged
        self._await_equal()

    def _await_complete(self) -> None:
        until(lambda: ask(self.standby.daemon, "GET", "state.json").json.get("is_complete"))

    def _await_equal(self) -> None:
        """Wait until both have the same, and check that it is what was acknowledged."""
        numbers = self.first.numbers()
        assert set(self._known) <= set(numbers), sorted(set(self._known) - set(numbers))[:5]
        until(lambda: self.standby.find_numbers() == numbers, "what the first has")

    def _cut(self, writer: Writer) -> None:
        for _ in range(3):
            self.first.proxy.cut()
            writer.await_more()

    def _kill_standby(self, writer: Writer) -> None:
        self.standby.daemon.kill()
        writer.stop()
        self.standby.start(self.first.url)

    def _kill_first(self, writer: Writer) -> None:
        self.first.daemon.kill()
        writer.stop()
        self.first.start()

    def _planned(self, writer: Writer) -> None:
        """Promote while the first runs and is written."""
        reader = Reader(self.standby)
        until(lambda: len(reader.numbers) > 10, "events")
        answer = ask(self.standby.daemon, "POST", "promote.json", {})
        assert answer.status == 200, answer
        assert answer.json["is_current"] is True, answer
        self._change_places(writer, reader, lost=False)

    def _unplanned(self, writer: Writer) -> None:
        """Promote after the first has died."""
        reader = Reader(self.standby)
        until(lambda: len(reader.numbers) > 10, "events")
        self.first.daemon.kill()
        shown = self.standby.numbers()
        answer = ask(self.standby.daemon, "POST", "promote.json", {})
        assert answer.status == 200, answer
        there = self.standby.numbers()
        assert set(shown) <= set(there)
        self._change_places(writer, reader, lost=True)

    def _change_places(self, writer: Writer, reader: Reader, *, lost: bool) -> None:
        writer.stop()
        there = self.standby.numbers()
        known = self._known + writer.acknowledged
        missing = sorted(set(known) - set(there))
        assert lost or not missing, missing[:5]
        # A number that is there has all before it.
        assert not missing or max(there) < missing[0]
        self._known = [each for each in self._known if each in set(there)]
        writer.acknowledged[:] = [each for each in writer.acknowledged if each in set(there)]
        after = Writer(self.standby, writer.stop())
        after.await_more()
        after.stop()
        until(lambda: reader.numbers[-1] == after.acknowledged[-1], "the last event")
        reader.close()
        seen = reader.numbers
        wanted = [each for each in self.standby.numbers() if each >= seen[0]]
        assert seen == wanted, (seen[:5], wanted[:5], len(seen), len(wanted))
        self._known += after.acknowledged
        self.first.daemon.kill()
        self.first, self.standby = self.standby, self.first
        self.standby.start(self.first.url)
        writer.begin_at(after.stop())


KINDS: Final = ("cut", "kill_standby", "kill_first", "planned", "unplanned")
