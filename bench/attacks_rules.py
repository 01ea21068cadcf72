"""Attacks by rules and tokens: what a verdict reads, and who claims to be whom."""

from __future__ import annotations

import base64
import json
from typing import Any

from attacked import MIB, OPEN, Scene
from attacks import attack, statuses
from attacks_streams import open_many, read_all
from listeners import dial

TEXT_BYTES = 10 * MIB - 8


def rule(expression: str) -> dict[str, Any]:
    """Return rules that judge writes of `w` by an expression; all else is open."""
    return {"$other": OPEN, "w": {".read": True, ".write": expression}}


def write_judged(scene: Scene, expression: str, text: str = "x") -> str:
    """Put rules in force, then write a string of 10 MB that they judge, again and again."""
    scene.owner().put_rules(rule(expression))
    client = scene.client()
    value = (text * (TEXT_BYTES // len(text)))[: scene.many(TEXT_BYTES)]
    sent = json.dumps(value).encode()
    found = [client.ask("PUT", "/w.json?print=silent", sent)[0] for _ in scene.repeatedly()]
    return statuses(found)


@attack("rules: matches over 10 MB", in_workers=True)
def matches(scene: Scene) -> str:
    """Write a string of 10 MB where a rule compares it with a regular expression."""
    return write_judged(scene, "newData.val().matches(/^(a|b|[c-z])*[0-9]?x*$/)")


@attack("rules: matches, case ignored")
def matches_ignoring_case(scene: Scene) -> str:
    """Write a string of 10 MB of two-byte letters where a rule matches it in either case."""
    return write_judged(scene, "newData.val().matches(/^(é|ü|[à-ÿ])*ä$/i)", "é")


@attack("rules: replace over 10 MB", in_workers=True)
def replace(scene: Scene) -> str:
    """Write a string of 10 MB where a rule replaces each letter by ten."""
    return write_judged(scene, "newData.val().replace('x', 'yyyyyyyyyy').length > 5")


@attack("rules: replace, again and again")
def replace_often(scene: Scene) -> str:
    """Write a string of 10 MB where a rule replaces letters five times."""
    steps = "".join(f".replace('{one}', '{two}')" for one, two in ("xy", "yz", "za", "ab", "bc"))
    return write_judged(scene, f"newData.val(){steps}.contains('q')")


@attack("rules: methods of a long string")
def methods(scene: Scene) -> str:
    """Write a string of 10 MB where a rule uses the other methods of strings."""
    text = "newData.val()"
    each = (".toUpperCase()", ".toLowerCase()", ".length", ".contains('yy')", ".endsWith('y')")
    terms = " && ".join(f"{text}{one} != '1'" for one in each)
    return write_judged(scene, f"{terms} && {text} + 'a' != {text} + 'b'")


@attack("rules: all children of 100,000")
def children(scene: Scene) -> str:
    """Write 100,000 children that a rule validates each."""
    valid = "newData.isNumber() && newData.val() >= 0 && root.child('leaf').val() != $k"
    scene.owner().put_rules({"w": {".write": True, "$k": {".validate": valid}}})
    body = json.dumps({f"k{number}": number for number in range(scene.many(100_000))}).encode()
    client = scene.client()
    target = "/w.json?print=silent&timeout=20s"
    return statuses([client.ask("PUT", target, body)[0] for _ in scene.repeatedly()])


@attack("rules: deep expression")
def deep_expression(scene: Scene) -> str:
    """Write where the rule of 16 KB has 900 operands, 64 at once over 20 connections."""
    terms = " || ".join(f"data.child('a{number}').exists()" for number in range(400))
    scene.owner().put_rules(rule(f"{terms} || true"))
    clients = [scene.client() for _ in range(scene.many(20))]
    found = [each.ask("PUT", "/w.json", 1)[0] for _ in scene.repeatedly() for each in clients]
    return statuses(found)


def load_leaf(scene: Scene) -> None:
    """Store a leaf of 10 MB, by which rules judge who may read."""
    owner = scene.owner()
    owner.ask("PUT", "judge", "print=silent", b'"%b"' % (b"x" * scene.many(TEXT_BYTES)))
    owner.put_rules(
        {
            "$other": OPEN,
            "w": {
                ".write": True,
                "$n": {".read": "root.child('judge').val().contains('y' + $n) == false"},
            },
        }
    )


@attack("rules: 100 streams by a 10 MB leaf", load_leaf, in_workers=True)
def judged_streams(scene: Scene) -> str:
    """Open 100 streams that are judged by a leaf of 10 MB, and change the leaf again and again."""
    held = open_many(scene, [f"/w/{number}.json" for number in range(scene.many(100))])
    client = scene.client()
    found = []
    for number in scene.repeatedly():
        text = f'"{number}{"x" * scene.many(TEXT_BYTES - 100)}"'.encode()
        found.append(client.ask("PUT", "/judge.json?print=silent", text)[0])
        read_all(held, min(1.0, scene.seconds))
    return f"{len(held)} opened, {statuses(found)}"


@attack("rules: 500 streams, judged again")
def judged_again(scene: Scene) -> str:
    """Open 500 streams that are judged by a leaf, and change the leaf again and again."""
    read = "root.child('judge').child($n).val() == root.child('leaf').val()"
    scene.owner().put_rules({"judge": OPEN, "leaf": OPEN, "w": {"$n": {".read": read}}})
    scene.client().ask("PUT", "/leaf.json", None)
    held = open_many(scene, [f"/w/{number}.json" for number in range(scene.many(500))])
    client = scene.client()
    count = scene.many(500)
    for number in scene.repeatedly():
        client.ask("PUT", "/judge.json?print=silent", {f"{n}a": number for n in range(count)})
        read_all(held, 0.05)
    return f"{len(held)} opened"


@attack("rules: PUT again and again", in_workers=True)
def put_rules(scene: Scene) -> str:
    """Put rules of nearly a megabyte in force, as an admin, while 200 streams are judged."""
    owner = scene.owner()
    many = scene.many(6000)
    paths: dict[str, Any] = {
        f"p{number}": {".read": "auth != null && auth.uid == 'a' || data.child('x').exists()"}
        for number in range(many)
    }
    held = open_many(scene, [f"/s{number}.json" for number in range(scene.many(200))])
    for number in scene.repeatedly():
        owner.put_rules({"$other": OPEN, **paths, "z": {".read": f"{number} > 1"}})
    return f"{len(held)} opened"


@attack("rules: PUT of what is not valid")
def put_invalid_rules(scene: Scene) -> str:
    """Put rules of a megabyte that have an error each, as an admin, again and again."""
    headers = {"Authorization": "Bearer owner"}
    broken = {f"p{number}": {".raed": "auh.uid = 1"} for number in range(scene.many(20_000))}
    client, body = scene.client(), json.dumps({"rules": broken}).encode()
    target = "/.settings/rules.json"
    return statuses([client.ask("PUT", target, body, **headers)[0] for _ in scene.repeatedly()])


def part(value: Any) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@attack("tokens: large and invalid", in_workers=True)
def invalid_tokens(scene: Scene) -> str:
    """Send distinct tokens of 8 KB, whose signatures are wrong, over 50 connections."""
    clients = [scene.client() for _ in range(scene.many(50))]
    head, found = part({"alg": "HS256", "typ": "JWT"}), []
    for number in scene.repeatedly():
        for place, each in enumerate(clients):
            claims = part({"sub": f"{number}-{place}", "exp": 4_000_000_000, "x": "y" * 5800})
            token = f"Bearer {head}.{claims}.{'A' * 43}"
            found.append(each.ask("GET", "/leaf.json", None, Authorization=token)[0])
    return statuses(found)


@attack("tokens: unsigned, distinct")
def unsigned_tokens(scene: Scene) -> str:
    """Send distinct unsigned tokens of 8 KB, which development accepts, over 50 connections."""
    clients = [scene.client() for _ in range(scene.many(50))]
    head, found = part({"alg": "none", "typ": "JWT"}), []
    for number in scene.repeatedly():
        for place, each in enumerate(clients):
            uid = f"{number}-{place}"
            claims = part({"sub": uid, "user_id": uid, "exp": 4_000_000_000, "x": ["y"] * 1400})
            token = f"Bearer {head}.{claims}."
            found.append(each.ask("GET", "/leaf.json", None, Authorization=token)[0])
    return statuses(found)


@attack("tokens: deep claims")
def deep_claims(scene: Scene) -> str:
    """Send tokens whose claims have 1,000 levels, and keys of providers that do not exist."""
    client, found = scene.client(), []
    for number in scene.repeatedly():
        claims = "[" * 1000 + "]" * 1000
        body = base64.urlsafe_b64encode(f'{{"sub":"a","x":{claims}}}'.encode()).rstrip(b"=")
        for alg in ("HS256", "RS256", "none"):
            head = part({"alg": alg, "kid": f"k{number}"})
            token = f"Bearer {head}.{body.decode()}.AAAA"
            found.append(client.ask("GET", "/leaf.json", None, Authorization=token)[0])
    return statuses(found)


@attack("callers: 2,000 paths each once")
def distinct_paths(scene: Scene) -> str:
    """Read distinct long paths, so that nothing that is kept serves twice."""
    count = 0
    deep = "/".join(["x" * 700] * 30)
    with dial(scene.url) as opened:
        for number in range(scene.many(2000)):
            target = f"GET /{number}/{deep}.json?shallow=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
            opened.sendall(target.encode())
            count += len(opened.recv(65_536))
    return f"{count} bytes"
