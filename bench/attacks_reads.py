"""Attacks by what is read: large values in every form, and queries."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import quote

from attacked import MIB, OPEN, Scene
from attacks import attack, statuses
from sessions import Records, encode, load

FIREBASE = {"X_Firebase_ETag": "true"}


def load_large(scene: Scene) -> None:
    """Load a value of 28 MiB."""
    load(scene.owner(), "large", Records(scene.many(112_000)))


def load_strings(scene: Scene) -> None:
    """Load a value of 27 MiB that is three long strings full of what has to be escaped."""
    text = '"\\\n\x01 : ' * scene.many(1_000_000)
    for number in range(3):
        scene.owner().ask("PUT", f"large/{number}x", "print=silent", encode(text))


def load_digits(scene: Scene) -> None:
    """Load arrays of digits, 24 MiB."""
    text = b"[%b1]" % (b"1," * scene.many(4_000_000))
    for number in range(3):
        target = f"large/x{number}", "print=silent&timeout=15min", text
        scene.owner().ask("PUT", *target)


def load_small(count: int, scene: Scene) -> None:
    """Load so many children, in parts."""
    owner, part = scene.owner(), 50_000
    total = scene.many(count)
    for first in range(0, total, part):
        numbers = range(first, min(first + part, total))
        body = encode({f"k{n:07}": {"n": n * 7919 % total} for n in numbers})
        owner.ask("PATCH", "many", "print=silent&timeout=15min", body)


def load_million(scene: Scene) -> None:
    """Load a million children."""
    load_small(1_000_000, scene)


def load_100_000(scene: Scene) -> None:
    """Load 100,000 children."""
    load_small(100_000, scene)


def get_again(scene: Scene, target: str, method: str = "GET", **headers: str) -> str:
    """Read again and again, over two connections."""
    clients = scene.client(), scene.client()
    found, received = [], 0
    for number in scene.repeatedly():
        status, size = clients[number % 2].ask(method, target, None, **headers)
        found.append(status)
        received += size
    return f"{statuses(found)}, {received / MIB:.0f} MiB"


@attack("28 MiB: read", load_large)
def read(scene: Scene) -> str:
    """Read 28 MiB again and again."""
    return get_again(scene, "/large.json")


@attack("28 MiB: pretty", load_large, in_workers=True)
def pretty(scene: Scene) -> str:
    """Read 28 MiB, indented, again and again."""
    return get_again(scene, "/large.json?print=pretty")


@attack("28 MiB: pretty, firebase", load_large)
def pretty_firebase(scene: Scene) -> str:
    """Read 28 MiB, indented as Firebase does it, again and again."""
    return get_again(scene, "/large.json?print=pretty", **FIREBASE)


@attack("27 MiB of escapes: pretty, firebase", load_strings)
def pretty_strings(scene: Scene) -> str:
    """Read three strings of 9 MiB full of escapes, indented as Firebase does it."""
    return get_again(scene, "/large.json?print=pretty", **FIREBASE)


@attack("24 MiB of digits: pretty, firebase", load_digits)
def pretty_digits(scene: Scene) -> str:
    """Read 12 million digits, indented as Firebase does it: each is a line."""
    return get_again(scene, "/large.json?print=pretty", **FIREBASE)


@attack("28 MiB: 412", load_large, in_workers=True)
def precondition(scene: Scene) -> str:
    """Write on a condition that fails; the answer holds the 28 MiB."""
    client = scene.client()
    found = [client.ask("PUT", "/large.json", 1, If_Match='"x"')[0] for _ in scene.repeatedly()]
    return statuses(found)


@attack("28 MiB: 412, firebase", load_large)
def precondition_firebase(scene: Scene) -> str:
    """Write on a condition that fails; the body is the 28 MiB."""
    client = scene.client()
    found = [client.ask("PUT", "/large.json", 1, If_Match="x")[0] for _ in scene.repeatedly()]
    return statuses(found)


@attack("28 MiB: 412, pretty, firebase", load_large)
def precondition_pretty(scene: Scene) -> str:
    """Write on a condition that fails; the body is the 28 MiB, indented."""
    client, target = scene.client(), "/large.json?print=pretty"
    found = [client.ask("DELETE", target, None, If_Match="x")[0] for _ in scene.repeatedly()]
    return statuses(found)


@attack("28 MiB: 412 over digits", load_digits)
def precondition_digits(scene: Scene) -> str:
    """Write on a condition that fails over 12 million digits."""
    client = scene.client()
    found = [client.ask("PUT", "/large.json", 1, If_Match='"x"')[0] for _ in scene.repeatedly()]
    return statuses(found)


@attack("28 MiB: 304", load_large, in_workers=True)
def not_modified(scene: Scene) -> str:
    """Read on the condition that it has changed, which it has not."""
    tag = scene.client().tag("/large.json")
    return get_again(scene, "/large.json", If_None_Match=tag, **FIREBASE)


@attack("28 MiB: HEAD", load_large)
def head(scene: Scene) -> str:
    """Request the head of an answer of 28 MiB."""
    return get_again(scene, "/large.json", "HEAD")


@attack("28 MiB: compressed", load_large)
def compressed(scene: Scene) -> str:
    """Read 28 MiB compressed."""
    return get_again(scene, "/large.json", Accept_Encoding="gzip")


@attack("28 MiB: export", load_large)
def export(scene: Scene) -> str:
    """Read 28 MiB in the export form."""
    return get_again(scene, "/large.json?format=export")


@attack("28 MiB: callback", load_large)
def callback(scene: Scene) -> str:
    """Read 28 MiB as a script."""
    return get_again(scene, "/large.json?callback=f", Sec_Fetch_Site="same-origin")


@attack("28 MiB: slow readers", load_large, in_workers=True)
def slow_readers(scene: Scene) -> None:
    """Request 28 MiB over 100 connections, and read nothing."""
    held = []
    for _ in range(scene.many(100)):
        client = scene.client()
        client.begin("GET", "/large.json?print=pretty")
        held.append(client)
    for _ in scene.repeatedly():
        with contextlib.suppress(OSError):
            scene.client().ask("GET", "/leaf.json")


def load_escapes(scene: Scene) -> None:
    """Load a string whose JSON has 16 MB."""
    text = b'"%b"' % (rb"\u0001" * scene.many(2_700_000))
    scene.owner().ask("PUT", "large", "print=silent", text)


@attack("16 MB in one string: tags", load_escapes)
def tags_of_a_string(scene: Scene) -> str:
    """Request the tag of a string of 16 MB, which a write changes before each time."""
    client, found = scene.client(), []
    for number in scene.repeatedly():
        found.append(client.ask("PUT", "/large/.priority.json?print=silent", number)[0])
        found.append(client.ask("GET", "/large.json", None, **FIREBASE)[0])
    return statuses(found)


@attack("16 MB in one string: reads", load_escapes)
def reads_of_a_string(scene: Scene) -> str:
    """Read a string of 16 MB that has a priority in each form, and what is at and above it."""
    client, owner = scene.client(), scene.owner()
    owner.ask("PUT", "large/.priority", "print=silent", b"1")
    owner.close()
    forms = ("", "?format=export", "?shallow=true", "?print=pretty", "?print=silent")
    orders = ("%22$priority%22", "%22a%22", "%22$value%22")
    targets = [f"/large.json{form}" for form in forms] + ["/large/.priority.json", "/large/a.json"]
    targets += [f"/.json?orderBy={order}&limitToFirst=1" for order in orders]
    targets += ["/.json?where=" + quote('{"$priority":1}')]
    return statuses(
        [
            client.ask("GET", target, None, **headers)[0]
            for _ in scene.repeatedly()
            for target in targets
            for headers in ({}, FIREBASE)
        ]
    )


def load_long_key(scene: Scene) -> None:
    """Load 3 MB below a key that is too long for rows below it, with a priority."""
    members = b",".join(b'"k%06d":%d' % (n, n) for n in range(scene.many(160_000)))
    target = "n" * 700, "print=silent&timeout=15min", b'{".priority":1,%b}' % members
    scene.owner().ask("PUT", *target)


@attack("3 MB below a long key", load_long_key)
def below_a_long_key(scene: Scene) -> str:
    """Read 3 MB that are in one row, a leaf in it, and its priority, and change the leaf."""
    client, at, found = scene.client(), f"/{'n' * 700}", []
    for number in scene.repeatedly():
        targets = f"{at}.json", f"{at}/k000001.json", f"{at}/.priority.json"
        found += [client.ask("GET", target)[0] for target in targets]
        found.append(client.ask("PUT", f"{at}/k000001.json?print=silent", number)[0])
    return statuses(found)


@attack("a million keys: shallow", load_million, in_workers=True)
def shallow(scene: Scene) -> str:
    """Read the keys of a million children, again and again."""
    return get_again(scene, "/many.json?shallow=true")


@attack("a million keys: shallow, sizes", load_million)
def shallow_sizes(scene: Scene) -> str:
    """Read the keys and sizes of a million children, again and again."""
    return get_again(scene, "/many.json?shallow=true&v=2")


@attack("a million keys: shallow, pretty", load_million)
def shallow_pretty(scene: Scene) -> str:
    """Read the keys of a million children, indented as Firebase does it."""
    return get_again(scene, "/many.json?shallow=true&print=pretty", **FIREBASE)


@attack("100,000: orderBy, no index", load_100_000, in_workers=True)
def order_by(scene: Scene) -> str:
    """Order 100,000 children by what has no index; take one of them."""
    return get_again(scene, "/many.json?orderBy=%22n%22&limitToFirst=1")


@attack("100,000: orderBy, all, pretty", load_100_000)
def order_all(scene: Scene) -> str:
    """Order 100,000 children by what has no index, and take all."""
    return get_again(scene, "/many.json?orderBy=%22n%22&print=pretty", **FIREBASE)


@attack("100,000: orderBy $value", load_100_000)
def order_by_value(scene: Scene) -> str:
    """Order 100,000 children by their values, and take the last."""
    return get_again(scene, "/many.json?orderBy=%22$value%22&limitToLast=50000")


@attack("100,000: where", load_100_000, in_workers=True)
def where(scene: Scene) -> str:
    """Look through 100,000 children by 16 conditions, of which the last fails."""
    conditions: dict[str, object] = {f"a{number}": {"exists": False} for number in range(15)}
    text = quote(json.dumps(conditions | {"n": -1}))
    return get_again(scene, f"/many.json?where={text}")


@attack("100,000: where, in 1,000", load_100_000)
def where_in(scene: Scene) -> str:
    """Look through 100,000 children for one of 1,000 long strings."""
    listed = json.dumps({"n": {"in": [f"{'x' * 60}{number}" for number in range(1000)]}})
    return get_again(scene, f"/many.json?where={quote(listed)}")


@attack("100,000: where by an index", load_100_000)
def where_indexed(scene: Scene) -> str:
    """Declare an index, then ask for half of the children by `where`, and order by another."""
    scene.owner().put_rules(OPEN | {"many": {".indexOn": ["n"]}})
    text = quote(json.dumps({"n": {">": 10}}))
    return get_again(scene, f"/many.json?where={text}&orderBy=%22n%22&limitToLast=90000")


def write_log(scene: Scene) -> None:
    """Write 1,000 values of 50 KB, so that the change log is full."""
    owner = scene.owner()
    for number in range(scene.many(1000)):
        owner.ask("PUT", f"log/{number}", "print=silent", b'"%b"' % (b"x" * 50_000))


@attack("change log and activity", write_log)
def change_log(scene: Scene) -> str:
    """Read the change log and the activity, as an admin, again and again."""
    headers = {"Authorization": "Bearer owner"}
    client, log = scene.client(), "/.settings/log.json?format=export&limitToFirst=1000"
    targets = (log, "/.inspect/activity.json", "/.inspect/databases.json")
    return statuses(
        [
            client.ask("GET", each, None, **headers)[0]
            for _ in scene.repeatedly()
            for each in targets
        ]
    )


@attack("long request lines")
def long_lines(scene: Scene) -> str:
    """Request paths of 32 keys of 700 encoded characters, again and again."""
    path = "/".join(["%C3%A9" * 256] * 32)
    return get_again(scene, f"/{path}.json")
