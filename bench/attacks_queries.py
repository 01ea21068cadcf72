"""Attacks by queries: over children with long strings, and by many fields that are watched."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

from attacked import OPEN, Scene
from attacks import attack, statuses
from attacks_reads import get_again
from attacks_streams import open_many
from sessions import encode

WAIT_FOR_INDEX = 100
"""Tenths of a second."""
ORDER = "orderBy=%22s%22"


def load_texts(scene: Scene, count: int, size: int, each: int) -> None:
    """Load children, `each` in a write, ordered by texts that differ at the end alone."""
    owner, total = scene.owner(), scene.many(count)
    for first in range(0, total, each):
        numbers = range(first, min(first + each, total))
        body = encode({f"k{n:06}": {"s": "x" * size + str(n * 7919 % total)} for n in numbers})
        owner.ask("PATCH", "texts", "print=silent&timeout=15min", body)


def load_ties(scene: Scene) -> None:
    """Load 100,000 children whose order is not in the entries of an index, and declare that."""
    owner = scene.owner()
    owner.put_rules(OPEN | {"texts": {".indexOn": ["s"]}})
    load_texts(scene, 100_000, 200, 10_000)
    target, explained = ("texts", f"{ORDER}&limitToFirst=1"), {"X-TreeDB-Explain": "true"}
    for _ in range(WAIT_FOR_INDEX):
        owner.ask("GET", *target)
        if b'"built"' in owner.ask("GET", *target, None, explained)[1]:
            break
        time.sleep(0.1)


def load_long(scene: Scene) -> None:
    """Load 2,000 children with 100 KB each."""
    load_texts(scene, 2000, 100_000, 100)


def load_leaves(scene: Scene) -> None:
    """Load 40 children that are strings of 5 MB."""
    owner = scene.owner()
    for number in range(40):
        text = encode("é\\x" * scene.many(1_000_000))
        owner.ask("PUT", f"leaves/k{number}", "print=silent", text)


@attack("long texts: 100,000 ties of an index", load_ties)
def ties(scene: Scene) -> str:
    """Take one of 100,000 children by an index in which all of them are equal."""
    return get_again(scene, f"/texts.json?{ORDER}&limitToFirst=1")


@attack("long texts: 2,000 x 100 KB, a few", load_long)
def order_long(scene: Scene) -> str:
    """Order 2,000 children by texts of 100 KB, and take a thousand of them."""
    return get_again(scene, f"/texts.json?{ORDER}&limitToFirst=1000")


@attack("long texts: 2,000 x 100 KB, all", load_long)
def order_all_long(scene: Scene) -> str:
    """Order 2,000 children by texts of 100 KB, and take all of them."""
    return get_again(scene, f"/texts.json?{ORDER}")


@attack("long texts: 40 x 5 MB, where", load_leaves)
def where_long(scene: Scene) -> str:
    """Look through 40 texts of 5 MB for one key."""
    text = quote(json.dumps({"$key": "k0"}))
    return get_again(scene, f"/leaves.json?where={text}")


@attack("long texts: 40 x 5 MB, orderBy", load_leaves)
def value_long(scene: Scene) -> str:
    """Order 40 texts of 5 MB."""
    return get_again(scene, "/leaves.json?orderBy=%22$value%22&limitToLast=1")


def load_few(scene: Scene) -> None:
    """Load 1,500 children."""
    body = encode({f"k{number:06}": {"a": 1} for number in range(scene.many(1500))})
    scene.owner().ask("PATCH", "many", "print=silent", body)


@attack("streams: 2,000 fields watched", load_few)
def many_fields(scene: Scene) -> str:
    """Watch 2,000 fields of the children of one path, and write 16 and 1,500 of these at once."""
    count = scene.many(2000)
    targets = [f"/many.json?orderBy=%22f{number}%22&equalTo=7" for number in range(count)]
    held = open_many(scene, targets)
    client, found = scene.client(), []
    for number in scene.repeatedly():
        for children in (scene.many(16), scene.many(1500)):
            body = {f"k{each:06}/a": number for each in range(children)}
            found.append(client.ask("PATCH", "/many.json?print=silent", body)[0])
    return f"{len(held)} opened, {statuses(found)}"
