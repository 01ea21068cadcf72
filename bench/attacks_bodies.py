"""Attacks by what is written: bodies of every shape, and writes that mean much work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from attacked import MIB, OPEN, Scene, pack
from attacks import attack, statuses
from sessions import Records, encode, load

BODY = 16 * MIB - 64
QUIET = "print=silent&timeout=20s"


def put_again(scene: Scene, text: bytes) -> str:
    """PUT a body, compressed, again and again."""
    packed, client = pack(text), scene.client()
    found = [client.put_gzip(f"/w.json?{QUIET}", packed) for _ in scene.repeatedly()]
    return f"{len(packed) / 1024:.0f} KB: {statuses(found)}"


def filled(scene: Scene, item: bytes, between: bytes = b",") -> bytes:
    """Return as many items as a body may have."""
    return between.join([item] * (scene.many(BODY) // (len(item) + len(between))))


@attack("body: array of digits", in_workers=True)
def array_of_digits(scene: Scene) -> str:
    """PUT an array of 8 million items that gzip makes 16 KB of, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b"1"))


@attack("body: array of digits, echoed")
def echoed_array(scene: Scene) -> str:
    """PUT an array of 500,000 items whose answer has as many, and POST and PATCH it, too."""
    packed, found = pack(b"[%b1]" % (b"1," * scene.many(500_000))), []
    client = scene.client()
    for _ in scene.repeatedly():
        for method, target in (("PUT", "/w.json"), ("POST", "/w.json"), ("GET", "/w.json")):
            body = None if method == "GET" else packed
            found.append(client.ask(method, target, body, Content_Encoding="gzip")[0])
    return statuses(found)


def put_at_once(scene: Scene, text: bytes) -> str:
    """PUT a body, compressed, over 40 connections at the same time, again and again."""
    packed, clients = pack(text), [scene.client() for _ in range(scene.many(40))]
    found = []
    for _ in scene.repeatedly():
        for number, each in enumerate(clients):
            target = f"/w{number}.json?print=silent&timeout=5s"
            each.begin("PUT", target, packed, Content_Encoding="gzip")
        found += [each.end() for each in clients]
    return statuses(found)


@attack("at once: 40 arrays of digits", in_workers=True)
def arrays_at_once(scene: Scene) -> str:
    """PUT 40 arrays of 8 million items at the same time, again and again."""
    return put_at_once(scene, b"[%b]" % filled(scene, b"1"))


@attack("at once: 40 objects of 1,900 members")
def objects_at_once(scene: Scene) -> str:
    """PUT 40 objects that are just no large bodies at the same time, again and again."""
    return put_at_once(scene, encode({f"k{number}": "x" * 100 for number in range(1900)}))


@attack("at once: 40 strings of 10 MB")
def strings_at_once(scene: Scene) -> str:
    """PUT 40 strings of 10 MB at the same time, again and again."""
    return put_at_once(scene, b'"%b"' % (b"x" * scene.many(10 * MIB)))


@attack("at once: 40 bodies of spaces")
def spaces_at_once(scene: Scene) -> str:
    """PUT 40 bodies of spaces that are too long when decoded at the same time, again and again."""
    return put_at_once(scene, b" " * scene.many(2 * BODY))


@attack("body: array of empty arrays")
def array_of_arrays(scene: Scene) -> str:
    """PUT an array of 5 million empty arrays, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b"[]"))


@attack("body: array of strings")
def array_of_strings(scene: Scene) -> str:
    """PUT an array of 4 million short strings, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b'"a"'))


@attack("body: array of nulls")
def array_of_nulls(scene: Scene) -> str:
    """PUT an array of nulls, which are nothing, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b"null"))


@attack("body: array of numbers")
def array_of_numbers(scene: Scene) -> str:
    """PUT an array of numbers of 17 digits with exponents, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b"1.2345678901234567e-300"))


@attack("body: arrays of arrays of digits")
def arrays_of_digits(scene: Scene) -> str:
    """PUT an object of arrays of 1,000 digits, again and again."""
    arrays = scene.many(8000)
    inner = b"[%b1]" % (b"1," * 999)
    return put_again(scene, b"{%b}" % b",".join(b'"a%d":%b' % (n, inner) for n in range(arrays)))


@attack("body: object of digits", in_workers=True)
def object_of_digits(scene: Scene) -> str:
    """PUT an object of a million members, again and again."""
    members = (b'"k%07d":1' % number for number in range(scene.many(1_100_000)))
    return put_again(scene, b"{%b}" % b",".join(members))


@attack("body: one key many times")
def one_key(scene: Scene) -> str:
    """PUT an object whose two million members have the same key, again and again."""
    return put_again(scene, b"{%b}" % filled(scene, b'"k":1'))


@attack("body: deep objects")
def deep_objects(scene: Scene) -> str:
    """PUT objects of 30 levels beside each other, again and again."""
    one = b'{"a":' * 30 + b"1" + b"}" * 30
    count = scene.many(BODY) // (len(one) + 11)
    members = b",".join(b'"k%06d":%b' % (number, one) for number in range(count))
    return put_again(scene, b"{%b}" % members)


@attack("body: deep arrays")
def deep_arrays(scene: Scene) -> str:
    """PUT empty arrays of 100 levels beside each other, again and again."""
    return put_again(scene, b"[%b]" % filled(scene, b"[" * 100 + b"]" * 100))


@attack("body: too deep")
def too_deep(scene: Scene) -> str:
    """PUT 16 million opening brackets, again and again."""
    return put_again(scene, b"[" * scene.many(BODY))


@attack("body: string of escapes")
def string_of_escapes(scene: Scene) -> str:
    r"""PUT a string of 10 MB in escapes like \\u00e9, again and again."""
    return put_again(scene, b'"%b"' % filled(scene, rb"\u0041", b""))


@attack("body: keys of escapes")
def keys_of_escapes(scene: Scene) -> str:
    """PUT an object whose keys are escapes, again and again."""
    keys = (b'"%b%06x":1' % (rb"\u00e9" * 20, number) for number in range(scene.many(120_000)))
    return put_again(scene, b"{%b}" % b",".join(keys))


@attack("body: white space")
def white_space(scene: Scene) -> str:
    """PUT a digit between 16 MB of spaces, again and again."""
    return put_again(scene, b" " * scene.many(BODY) + b"1")


@attack("body: one string of 10 MB")
def one_string(scene: Scene) -> str:
    """PUT a string of 10 MB, again and again."""
    return put_again(scene, b'"%b"' % (b"x" * scene.many(10 * MIB)))


@attack("body: server values")
def server_values(scene: Scene) -> str:
    """PUT an object of 300,000 server values, again and again."""
    many = scene.many(300_000)
    members = (b'"k%06d":{".sv":"timestamp"}' % number for number in range(many))
    return put_again(scene, b"{%b}" % b",".join(members))


@attack("body: priorities")
def priorities(scene: Scene) -> str:
    """PUT an object of 300,000 leaves with priorities, again and again."""
    many = scene.many(300_000)
    members = (b'"k%06d":{".value":1,".priority":%d}' % (n, n) for n in range(many))
    return put_again(scene, b"{%b}" % b",".join(members))


@attack("body: bomb of gzip")
def gzip_bomb(scene: Scene) -> str:
    """PUT a body that gzip makes 1,000 times longer than may be, over and over."""
    return put_again(scene, b" " * scene.many(20 * BODY))


@attack("PATCH: 90,000 increments", in_workers=True)
def increments(scene: Scene) -> str:
    """PATCH 90,000 leaves by increments, again and again."""
    body = encode({f"k{n}": {".sv": {"increment": 1}} for n in range(scene.many(90_000))})
    return patch_again(scene, [body])


@attack("PATCH: 100,000 paths")
def multipath(scene: Scene) -> str:
    """PATCH 100,000 paths of three keys, again and again."""
    many = scene.many(100_000)
    return patch_again(scene, [encode({f"g{n % 100}/u{n}/name": f"n{n}" for n in range(many)})])


@attack("PATCH: long paths")
def long_paths(scene: Scene) -> str:
    """PATCH 4,000 paths of 32 keys of 100 characters, again and again."""
    many = scene.many(4000)
    deep = "/".join(["y" * 100] * 30)
    return patch_again(scene, [encode({f"k{number}/{deep}": 1 for number in range(many)})])


def patch_again(scene: Scene, bodies: list[bytes]) -> str:
    """PATCH by one body after the other, again and again."""
    client = scene.client()
    packed = list(map(pack, bodies))
    found = []
    for number in scene.repeatedly():
        body = packed[number % len(packed)]
        target = f"/w.json?{QUIET}"
        found.append(client.ask("PATCH", target, body, Content_Encoding="gzip")[0])
    return statuses(found)


def declare_indexes(scene: Scene) -> None:
    """Declare five indexes."""
    scene.owner().put_rules(OPEN | {"w": {".indexOn": ["a", "b", "c", "d", "e"]}})


@attack("PATCH: five indexes", declare_indexes, in_workers=True)
def five_indexes(scene: Scene) -> str:
    """PATCH 20,000 children, whose five indexes all change, again and again."""
    many = scene.many(20_000)
    bodies = [
        encode(
            {
                f"k{n}": {key: f"{round_}{key}{n * 7919 % many}" for key in "abcde"}
                for n in range(many)
            }
        )
        for round_ in range(3)
    ]
    return patch_again(scene, bodies)


@attack("PATCH: five indexes, one leaf each", declare_indexes)
def five_leaves(scene: Scene) -> str:
    """PATCH the indexed leaves of 16,000 children by their paths, again and again."""
    many = scene.many(16_000)
    bodies = [
        encode({f"k{n}/{key}": round_ * n for n in range(many) for key in "abcde"})
        for round_ in range(1, 4)
    ]
    return patch_again(scene, bodies)


def load_records(scene: Scene) -> None:
    """Load 300,000 records."""
    load(scene.owner(), "w", Records(scene.many(300_000)))


@attack("DELETE of 300,000 records", load_records, in_workers=True)
def delete(scene: Scene) -> str:
    """Remove everything."""
    return statuses([scene.client().ask("DELETE", f"/w.json?{QUIET}")[0]])


@attack("PUT over 300,000 records", load_records)
def overwrite(scene: Scene) -> str:
    """Replace everything by one leaf."""
    return statuses([scene.client().ask("PUT", f"/w.json?{QUIET}", 1)[0]])


@attack("import of 200,000 small rows")
def import_rows(scene: Scene) -> str:
    """Import a file of small rows by the command, as an admin."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        rows = (b'"r%07d":{"n":%d}' % (number, number) for number in range(scene.many(200_000)))
        file.write_bytes(b"{%b}" % b",".join(rows))
        words = ["import", str(file), f"{scene.url}/w.json", "--quiet"]
        command = str(Path(sys.executable).with_name("treedb"))
        env = os.environ | {"TREEDB_TOKEN": "owner"}
        done = subprocess.run(
            [command, *words], capture_output=True, check=False, text=True, env=env
        )
    return (done.stderr.strip() or "imported").splitlines()[-1][:60]


@attack("pushes, one after the other")
def pushes(scene: Scene) -> str:
    """POST small values over 50 connections, without waiting."""
    clients = [scene.client() for _ in range(scene.many(50))]
    found = [each.ask("POST", "/w.json", 1)[0] for _ in scene.repeatedly() for each in clients]
    return statuses(found)


@attack("long keys: 400,000 below 480 bytes")
def below_long_key(scene: Scene) -> str:
    """Write 400,000 children below a key that leaves no room for rows of theirs, and read them."""
    client, key = scene.client(), "k" * 480
    body = encode({f"c{number:06}": {"a": number} for number in range(scene.many(400_000))})
    found = [client.put_gzip(f"/{key}.json?print=silent", pack(body))]
    few = encode({f"c{number:06}": number for number in range(scene.many(20_000))})
    found.append(client.ask("PUT", f"/{key}.json?print=silent", few)[0])
    for _ in scene.repeatedly():
        found.append(client.ask("PUT", f"/{key}/c000001.json?print=silent", 1)[0])
        found.append(client.ask("GET", f"/{key}.json?shallow=true")[0])
        found.append(client.ask("GET", f"/{key}.json?orderBy=%22$key%22&limitToLast=1")[0])
    return statuses(found)
