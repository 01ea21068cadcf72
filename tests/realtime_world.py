"""A world of clients of the real-time protocol and of REST that write and listen at random.

Each write is one merge at the root: a member of it numbers the write, another changes `data`. A
client that listens to the numbers sees the order of the commits; the writes in that order are
applied to a model, whose value must be the stored one. Each client keeps a copy of all that it
listens to, from nothing but what it is sent; at rest each copy equals the stored value.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final, NamedTuple

import attrs

from tests.closing import Closing
from tests.realtime import Push, RealtimeClient
from tests.realtime_copy import Copy, comparable, normalised, set_value, split
from tests.rest import Client

CLIENTS: Final = 4
PATHS: Final = ("data", "data/a", "data/a/b", "data/a/b/c", "data/q", "data/q/x", "data/none")
QUERIES: Final[tuple[dict[str, Any], ...]] = (
    {"i": ".key", "l": 2, "vf": "l"},
    {"i": ".key", "l": 2, "vf": "r"},
    {"i": ".key", "sp": "b", "ep": "d"},
    {"i": ".value", "l": 2, "vf": "r"},
    {"i": ".value", "sp": 3},
    {"i": "n", "l": 2, "vf": "l"},
    {"i": "n", "sp": 2, "ep": 6, "l": 1, "vf": "r"},
    {"i": "n", "sp": 4, "ep": 4},
    {"l": 2, "vf": "l"},
    {"sp": 2, "ep": 6},
)
INCREMENT: Final = {".sv": {"increment": 1}}


class Key(NamedTuple):
    """What a client listens to: a path, and the number of a query, None for the value."""

    path: str
    query: int | None


@attrs.define
class Member:
    """A client with its copies; `unread` is where its next push is in what it received."""

    client: RealtimeClient
    copies: dict[Key, Copy | None] = attrs.Factory(dict)
    unread: int = 0

    def tag_of(self, key: Key) -> int:
        return PATHS.index(key.path) * len(QUERIES) + (key.query or 0)

    def body_of(self, key: Key) -> dict[str, Any]:
        """Return the body of a request that is about what a key names."""
        if key.query is None:
            return {"p": key.path}
        return {"p": key.path, "q": QUERIES[key.query], "t": self.tag_of(key)}

    def apply(self) -> None:
        """Apply what was pushed to the copies that it belongs to."""
        received = self.client.received
        for push in received[self.unread :]:
            if isinstance(push, Push):
                self._apply_one(push)
        self.unread = len(received)

    def _apply_one(self, push: Push) -> None:
        tag, keys = push.body.get("t"), push.keys
        reached = [
            key
            for key in self.copies
            if (tag is None) == (key.query is None)
            and keys[: len(split(key.path))] == split(key.path)
            and tag in (None, self.tag_of(key))
        ]
        for key in reached:
            copy = self.copies[key]
            if copy is None:  # the first value, which replaces the whole
                if keys != split(key.path):
                    continue
                copy = self.copies[key] = Copy(key.path, None)
            copy.apply(push.action, keys, push.body["d"])


class RealtimeWorld(Closing):
    """Clients of one tree, and the model of its value."""

    def __init__(self, tree: Client, seed: int) -> None:
        """Connect the clients; the tree is empty."""
        self.tree: Final = tree
        self.random: Final = random.Random(seed)
        self.members: Final = [Member(RealtimeClient(tree)) for _ in range(CLIENTS)]
        self.observers: Final = [RealtimeClient(tree) for _ in range(2)]
        for observer in self.observers:
            observer.listen("seq")
            observer.received.clear()
        self.writes: Final[dict[int, tuple[str, Any]]] = {}
        self.value: Any = None
        self.applied = 0
        self._written = 0
        self._awaited: list[tuple[RealtimeClient, int, int | None]] = []

    def close(self) -> None:
        """Disconnect all."""
        for each in [*(member.client for member in self.members), *self.observers]:
            each.close()

    def step(self) -> None:
        """Do something at random, without waiting for its answer."""
        choose = self.random.choices(
            [self._write, self._write_by_rest, self._listen, self._unlisten, self._reconnect],
            [10, 5, 4, 2, 0.3],
        )[0]
        choose()

    def settle(self) -> None:
        """Wait until all is answered and every client has seen the last commit; check all."""
        for each in self._awaited:
            self._check_answer(*each)
        self._awaited.clear()
        for member in self.members:
            member.client.put("zz-barrier", len(member.client.received))
            member.apply()
        self._check_order()
        self._check_model()
        for member in self.members:
            for key, copy in member.copies.items():
                self._check_copy(member, key, copy)

    def _check_answer(self, client: RealtimeClient, number: int, write: int | None) -> None:
        """Check the answer to a request; a write that sets the priority of nothing is refused."""
        answer = client.await_answer(number)
        if answer.status == "ok" or write is None:
            assert answer.status == "ok", answer
            return
        path, data = self.writes.pop(write)
        assert path.endswith("/.priority"), (path, answer)
        assert data is not None
        assert answer.status == "failure"

    def _check_order(self) -> None:
        """Check that each observer has seen each write once, and both in one order."""
        for observer in self.observers:
            observer.put("zz-barrier", len(observer.received))
        seen = [[self._number_of(push) for push in each.pushed] for each in self.observers]
        assert seen[0] == seen[1]
        assert sorted(seen[0]) == sorted(self.writes)
        for number in seen[0][self.applied :]:
            path, data = self.writes[number]
            self._apply_to_model(path, data)
        self.applied = len(seen[0])

    @staticmethod
    def _number_of(push: Push) -> int:
        data = push.body["d"]
        while isinstance(data, dict):
            [data] = data.values()
        return int(data)

    def _apply_to_model(self, path: str, data: Any) -> None:
        keys = split(path)
        if data == INCREMENT:
            now: Any = self.value
            for key in keys:
                now = now.get(key) if isinstance(now, dict) else None
            now = now.get(".value") if isinstance(now, dict) else now
            is_number = isinstance(now, int | float) and not isinstance(now, bool)
            data = now + 1 if is_number else 1
        self.value = set_value(self.value, keys, normalised(data))

    def _check_model(self) -> None:
        stored = normalised(self.tree.get("/data.json?format=export"))
        value = self.value["data"] if isinstance(self.value, dict) else None
        assert comparable(stored) == comparable(value)

    def _check_copy(self, member: Member, key: Key, copy: Copy | None) -> None:
        assert copy is not None, key
        stored = member.client.get(key.path, None if key.query is None else QUERIES[key.query])
        expected, held = normalised(stored), copy.value
        if key.query is not None:
            expected, held = children_of(expected), children_of(held)
        assert comparable(held) == comparable(expected), key

    def _next_write(self) -> tuple[int, dict[str, Any]]:
        number = self._written
        self._written += 1
        path, data = self._random_write()
        self.writes[number] = path, data
        return number, {f"seq/{number % 5}": number, path: data}

    def _random_write(self) -> tuple[str, Any]:
        choice = self.random
        path = choice.choice(PATHS[:-1])
        kind = choice.random()
        if kind < 0.5:
            path += "/" + choice.choice("abcdex")
        if kind < 0.1:
            return path + "/.priority", choice.choice([None, 1, 3, 5, "p"])
        if kind < 0.2:
            return path, INCREMENT
        return path, self._random_value(2)

    def _random_value(self, depth: int) -> Any:
        choice = self.random
        kind = choice.random()
        if depth and kind < 0.4:
            names = choice.sample(["a", "b", "c", "d", "x", "n", "1", "0"], choice.randint(1, 4))
            made = {name: self._random_value(depth - 1) for name in names}
            return made | ({".priority": choice.randint(0, 8)} if choice.random() < 0.2 else {})
        if kind < 0.5:
            return {".value": choice.randint(0, 8), ".priority": choice.randint(0, 8)}
        return choice.choice([None, True, choice.randint(0, 8), choice.randint(0, 8), "text"])

    def _write(self) -> None:
        member = self.random.choice(self.members)
        write, members = self._next_write()
        number = member.client.send_request("m", {"p": "", "d": members})
        self._awaited.append((member.client, number, write))

    def _write_by_rest(self) -> None:
        _, members = self._next_write()
        response = self.tree.request("PATCH", "/.json", json.dumps(members))
        assert response.status == 200, response

    def _listen(self) -> None:
        member = self.random.choice(self.members)
        query = self.random.choice([None, *range(len(QUERIES))])
        key = Key(self.random.choice(PATHS), query)
        if key in member.copies:
            return
        member.client.read_available()
        member.apply()
        member.copies[key] = None
        number = member.client.send_request("q", member.body_of(key) | {"h": ""})
        self._awaited.append((member.client, number, None))

    def _unlisten(self) -> None:
        member = self.random.choice(self.members)
        if member.copies:
            key = self.random.choice(list(member.copies))
            number = member.client.send_request("n", member.body_of(key))
            assert member.client.await_answer(number).status == "ok"
            member.apply()
            del member.copies[key]

    def _reconnect(self) -> None:
        """Cut a connection when its writes are answered, and listen again on another."""
        member = self.random.choice(self.members)
        for each in self._awaited:
            if each[0] is member.client:
                self._check_answer(*each)
        self._awaited = [each for each in self._awaited if each[0] is not member.client]
        former, keys = member.client, list(member.copies)
        former.reset()
        member.client = RealtimeClient(self.tree, f"/.ws?v=5&ls={former.session}")
        member.unread, member.copies = 0, dict.fromkeys(keys)
        for key in keys:
            number = member.client.send_request("q", member.body_of(key) | {"h": ""})
            self._awaited.append((member.client, number, None))


def children_of(value: Any) -> Any:
    """Return the children of a value; of a leaf there are none."""
    if not isinstance(value, dict) or ".value" in value:
        return None
    return {key: child for key, child in value.items() if key != ".priority"} or None
