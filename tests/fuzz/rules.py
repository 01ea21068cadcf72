"""Rules documents: checked, and if they are accepted evaluated for reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fuzz.expecting import outcome
from tests.tree.value_view import ValueView
from treedbd.limits import RulesLimits
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.tree.edit import make_patch, make_put, make_remove
from treedbd.tree.types import Json, Path, Place
from treedbd.tree.value import from_export

TOKENS: Final = (
    *(b'{"rules":{', b"}", b'".read":', b'".write":', b'".validate":', b'".indexOn":', b'"$uid":'),
    *(
        b'"auth != null"',
        b'"auth.uid == $uid"',
        b"true",
        b"false",
        b'"data',
        b".val()",
        b"/*",
        b"//",
    ),
    *(b".child('a')", b".parent()", b".exists()", b".hasChildren(['a'])", b"newData", b"root"),
    *(
        b".matches(/^a|b$/)",
        b".length",
        b"now",
        b"query.orderByKey",
        b" && ",
        b" || ",
        b"!",
        b"? 1",
    ),
    *(
        b" + ",
        b" / ",
        b" % ",
        b"'",
        b"(",
        b")",
        b"[",
        b"]",
        b" == ",
        b" < ",
        b",",
        b'"',
        b"\\u0041",
    ),
    *(b"{2,5}", b"(a|b)*", b".replace('a', 'b')", b".contains('\xc3\xa9')", b".toLowerCase()"),
)
_LIMITS: Final = RulesLimits(
    document_bytes=8192, nesting=60, chain_terms=100, judged_characters=20_000
)
_DATA: Final[Json] = {
    "a": {"b": 1, "c": "text", ".priority": 3},
    "users": {"ada": {"age": 36}, "alan": True},
    "long": "x" * 3000,
}
_CALLERS: Final[tuple[Json, ...]] = (
    None,
    {"uid": "ada", "provider": "custom", "token": {"a": [1, {"b": None}]}},
    {},
)
_PATHS: Final[tuple[Path, ...]] = ((), ("a", "b"), ("users", "ada", "age"), ("none", "at", "all"))
_NOW: Final = 1_700_000_000_000


def check(data: bytes) -> None:
    """Put the document in force and judge by it."""
    rules = outcome(lambda: parse_rules(data, _LIMITS), InvalidRules)
    if isinstance(rules, InvalidRules):
        return
    for auth in _CALLERS:
        for path in _PATHS:
            _check_read(rules, path, auth)
        _check_writes(rules, auth)


def _check_read(rules: RuleSet, path: Path, auth: Json) -> None:
    for query in (None, QueryFacts(order_by_key=True, limit_to_first=2)):
        known = rules.find_read(path, auth, query)
        allowed = rules.may_read(path, _context(auth, query)).allowed
        explained = rules.may_read(path, _context(auth, query), explain=True)
        assert known in {None, allowed}, "What is known without data is not so."
        assert explained.allowed is allowed, "An explanation changes a verdict."


def _check_writes(rules: RuleSet, auth: Json) -> None:
    for edit in (
        make_put(Place(("a",)), {"b": 2, "d": [1, None, "x"]}),
        make_patch((), {"users/ada/age": 37, "a/c": None, "new": {"x": {"y": 1}}}),
        make_remove(Place(("users",))),
        make_put(Place(("a",), is_priority=True), 9),
    ):
        known = rules.find_write(edit.changes, auth)
        allowed = rules.may_write(edit.changes, _context(auth)).allowed
        assert known in {None, allowed}, "What is known without data is not so."
        for path in _paths_of(edit.place.path):
            assert not allowed or rules.may_write_somewhere(path, auth), "A right was not foreseen."


def _paths_of(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(len(path) + 1))


def _context(auth: Json, query: QueryFacts | None = None) -> Context:
    return Context(auth, _NOW, ValueView(from_export(_DATA)), query)
