"""Databases with hooks, what sends their events, and receivers in memory."""

from __future__ import annotations

import pathlib
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred

from tests.database.catalogs import make_catalog
from tests.database.world import run_at_once
from tests.hooks.network import ADDRESS, Network
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.election import SoleElection
from treedbd.database.event_capture import ChangeHooks
from treedbd.database.log_reader import write_rows
from treedbd.database.requests import Caller, ProjectSpec, Write
from treedbd.hooks.deliverer import LOOK_S, Deliverer, find_in_files
from treedbd.hooks.delivery import HookDelivery
from treedbd.hooks.functions import FunctionService
from treedbd.hooks.letters import ChangeLetters, Deed, HookState, Letter, find_letters, read_letters
from treedbd.hooks.letters import read_state as read_hook_state
from treedbd.limits import HookLimits, ReaderLimits
from treedbd.names import NO_TARGETS, DatabaseName
from treedbd.store.hooks import KINDS, Hook
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.pattern import parse_pattern
from treedbd.tree.types import Place

PROJECT: Final = ProjectSpec("p", None)
NAME: Final = DatabaseName("p", "a")
ADA: Final = Caller({"uid": "ada"})
LIMITS: Final = HookLimits(attempts=4, dead_letters=3, longest_wait_s=60)
URL: Final = f"http://{ADDRESS}/hook?token=in-the-url"


def make_hook(name: str = "orders", on: str = "/orders/$id", **options: Any) -> Hook:
    """Return a hook of all kinds of events."""
    given = {"url": URL, "kinds": frozenset(KINDS), "secrets": ("s" * 32,)} | options
    return Hook(name=name, on=parse_pattern(on), **given)


class HookWorld:
    """A catalog of files and what sends the events of its hooks; both can be killed.

    Attributes:
        configured: the hooks of the configuration.

    """

    def __init__(
        self,
        folder: pathlib.Path,
        *configured: Hook,
        limits: HookLimits = LIMITS,
        readers: ReaderLimits | None = None,
        functions: FunctionService | None = None,
    ) -> None:
        self.folder, self.limits, self.readers = folder, limits, readers
        self.functions = functions
        self.configured = tuple(attrs.evolve(each, is_configured=True) for each in configured)
        self.network = Network()
        self.start()

    def start(self) -> None:
        """Start; what the network has got before remains."""
        self.catalog: Catalog
        self.catalog, _ = make_catalog(
            self.folder,
            PROJECT,
            hooks_of=lambda name: self.configured if name == NAME else (),
            hook_limits=self.limits,
            readers=self.readers,
            clock=self.network,
        )
        self.runtime = self.catalog._runtime
        self.election = SoleElection()
        self.deliverer = Deliverer(
            catalog=self.catalog,
            runtime=self.runtime,
            election=self.election,
            reactor=self.network,
            allowed=NO_TARGETS,
            make_creator=lambda host: None,  # type: ignore[arg-type,return-value]
            find_hooked=find_in_files(self.catalog.file_of, run_at_once),
            functions=self.functions,
        )
        self.deliverer.start()

    def kill(self) -> None:
        """End as a process that is killed: nothing is stored any more."""
        self.deliverer._is_over = True
        self.runtime.news.clear()
        self.deliverer._forget_all()
        self.catalog.close_at_once()
        for call in list(self.network.getDelayedCalls()):
            call.cancel()
        self.network.open.clear()
        self.network.unanswered.clear()

    def stop(self) -> None:
        """End in order."""
        self.wait(Deferred.fromCoroutine(self.deliverer.stop()))
        self.catalog.close_at_once()

    @property
    def database(self) -> Database:
        """The database that has the hooks."""
        return self.catalog.find(NAME)

    def wait(self, waiting: Deferred[Any]) -> Any:
        """Take turns until a Deferred fires, which must come; return its result."""
        found: list[Any] = []
        waiting.addBoth(found.append)
        while not found:
            assert self.network.take_turn()
        return found[0]

    def put(self, value: Any, *path: str, name: DatabaseName = NAME) -> Any:
        """Write a value."""
        return self.do(make_put(Place(path), value), name)

    def patch(self, values: dict[str, Any], *path: str) -> Any:
        """Write several values in one write."""
        return self.do(make_patch(path, values, 10_000), NAME)

    def do(self, edit: Any, name: DatabaseName = NAME) -> Any:
        """Do a write."""
        database = self.catalog.find(name)
        opening = self.catalog.acquire(database, 30.0, is_write=True)
        if opening is not None:
            self.wait(opening)
        outcome = self.wait(database.write(Write(edit, 1_700_000_000_123, ADA)))
        self.catalog.release(database)
        return outcome

    def put_hooks(self, *hooks: Hook) -> None:
        """Have these hooks, as an admin puts them."""
        stamp = self.runtime.entropy(16)
        self.store(ChangeHooks(lambda _: list(hooks), stamp, 0))

    def change_letters(self, deed: Deed, ids: set[str] | None = None, hook: str = "orders") -> int:
        """Replay or discard dead letters; return how many."""
        given = None if ids is None else frozenset(ids)
        change = ChangeLetters(hook, deed, given, self.runtime.entropy(16))
        self.store(change)
        return change.changed

    def store(self, task: Any) -> None:
        """Change rows beside the tree."""
        result = self.wait(Deferred.fromCoroutine(write_rows(self.database, self.runtime, task)))
        assert result is None

    def letters(self, hook: str = "orders") -> list[Letter]:
        """Return the letters that are stored."""
        return self.database.read(
            lambda nodes: list(
                read_letters(nodes.rows.stored, hook, list(find_letters(nodes.rows.stored, hook)))
            )
        )

    def state(self, hook: str = "orders") -> HookState:
        """Return the state that is stored."""
        return self.database.read(lambda nodes: read_hook_state(nodes.rows.stored, hook))

    def delivery(self, hook: str = "orders") -> HookDelivery:
        """Return what sends the events of a hook."""
        found = self.deliverer.find_delivery(NAME, hook)
        assert found is not None
        return found

    def run(self, seconds: float = LOOK_S) -> None:
        """Let time pass, in steps that are shorter than any wait."""
        self.network.run()
        for _ in range(max(1, round(seconds * 4))):
            self.network.advance(min(seconds, 0.25))
            self.network.run()

    def values(self) -> list[Any]:
        """Return the values after the writes whose events were sent, in order."""
        return [each.value for each in self.network.posted]
