"""Remedies for the mistakes that authors of rules make most: one short sentence for each.

They are hints beside the texts of errors, which are those of Firebase; an empty one is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from treedbd.rules.ast import Expression, Literal, Variable
from treedbd.rules.suggest import suggest
from treedbd.rules.types import Type

CALL_IT: Final = "Call the method, with () behind its name."
TAKE_VALUE: Final = "Add .val() for the value of the node."
QUOTE_KEY: Final = "Write the key in quotes."
LIST_NAMES: Final = "Write the names in brackets, as in hasChildren(['name'])."
PATTERN: Final = "Write the pattern between slashes instead of quotes, as in matches(/^a/)."
READS_ONLY: Final = "Write data: a read changes nothing."
NOT_A_METHOD: Final = "Leave out the () behind it."
USE_CHILD: Final = "Write .child(…) for a child of a node."
JOIN_RULES: Final = "Join conditions by && or ||."

_VARIABLES: Final[Mapping[str, str]] = {
    "uid": "auth.uid",
    "user": "auth",
    "token": "auth.token",
    "request": "auth, newData or query",
    "resource": "data",
    "snapshot": "data",
    "value": "newData.val()",
    "timestamp": "now",
    "undefined": "null",
    "None": "null",
    "True": "true",
    "False": "false",
}
"""Names of other languages, and of the rules of other stores."""
_MEMBERS: Final[Mapping[str, str]] = {
    "isInteger": "isNumber()",
    "isArray": "hasChildren()",
    "isObject": "hasChildren()",
    "startsWith": "beginsWith()",
    "includes": "contains()",
    "indexOf": "contains()",
    "test": "matches()",
}
_BOOLEAN: Final[Mapping[Type, str]] = {
    Type.SNAPSHOT: "Add .exists() for whether the node is there.",
    Type.METHOD: CALL_IT,
    Type.QUERY: "Name a member, as in query.limitToLast <= 100.",
    Type.REGEX: "Match a string with it, as in auth.uid.matches(/^a/).",
    Type.NUMBER: "Compare it, as in … > 0.",
    Type.STRING: "Compare it, as in … == 'a'.",
    Type.NULL: "Compare something with it, as in auth != null.",
}
_OPERAND: Final[Mapping[Type, str]] = {
    Type.SNAPSHOT: TAKE_VALUE,
    Type.METHOD: CALL_IT,
    Type.QUERY: "Name a member, as in query.limitToLast.",
    Type.REGEX: "Match a string with it, as in auth.uid.matches(/^a/).",
    Type.NULL: "Compare with null by == or !=.",
    Type.BOOLEAN: "Join two comparisons by &&.",
    Type.STRING: "Only numbers can be calculated with.",
}


def remedy_of_variable(name: str, known: Collection[str], *, is_whole: bool) -> str:
    """Return the remedy for an unknown variable; `is_whole` says that it is the whole rule."""
    hint = suggest(name, known)
    if hint:
        return hint
    if name in _VARIABLES:
        return f"Write {_VARIABLES[name]}."
    if name.startswith("$"):
        return f"No node above this rule has the key '{name}'."
    return "" if is_whole else f"If it is a text, write it in quotes: '{name}'."


def remedy_of_member(name: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown member of something that has the members `known`."""
    return suggest(name, known) or (f"Write {_MEMBERS[name]}." if name in _MEMBERS else "")


def remedy_of_target(target: Type) -> str:
    """Return the remedy for a member of something that has none."""
    return CALL_IT if target is Type.METHOD else "Only nodes, texts, auth and query have members."


def remedy_of_condition(found: Type, node: Expression) -> str:
    """Return the remedy for what should be true or false."""
    if isinstance(node, Literal) and isinstance(node.value, str):
        return f"Compare it with something: x == 'a' || x == {node.value!r}."
    return _BOOLEAN.get(found, "Compare it, as in … == true, or … != null.")


def remedy_of_operand(found: Type) -> str:
    """Return the remedy for an operand of a comparison or a calculation."""
    return _OPERAND.get(found, "")


def remedy_of_call(callee: Expression, target: Type) -> str:
    """Return the remedy for a call of something that is no method."""
    if isinstance(callee, Variable):
        return USE_CHILD if target is Type.SNAPSHOT else ""
    return NOT_A_METHOD


def remedy_of_string(found: Type) -> str:
    """Return the remedy for an argument that should be a string."""
    return QUOTE_KEY if found is Type.NUMBER else remedy_of_operand(found)


_ASSIGNMENT: Final = "Write == to compare."
_OPERATORS: Final[Mapping[str, str]] = {
    "&": "Write && for and.",
    "|": "Write || for or.",
    ",": JOIN_RULES,
    "in": "Write hasChild(…) for whether a key is there.",
    "instanceof": "Use isString(), isNumber() or isBoolean().",
    "**": "Multiply by *.",
}
_WORDS: Final[Mapping[str, str]] = {
    "and": "Write && for and.",
    "or": "Write || for or.",
    "not": "Write ! for not.",
    "is": "Write == to compare.",
}
_STATEMENTS: Final[Mapping[str, str]] = {
    "return": "Leave it out: a rule is an expression.",
    "typeof": "Use isString(), isNumber() or isBoolean().",
}
_TYPOGRAPHIC: Final = "\u2018\u2019\u201c\u201d"  # what word processors make of quotes
_LAST_WORD: Final = re.compile(r"(\w+)\s*\Z")
_LONGEST_WORD: Final = 40
_OPERATOR_ENDS: Final = tuple("=!<>+-*/%&|,([?:")
_OPERAND_MISSING: Final = "An operand is missing before it."


def remedy_of_operator(operator: str, after: str = "") -> str:
    """Return the remedy for an operator of JavaScript that rules do not have.

    `after` is the text from it on: `&&` where an operand is expected begins with such an operator.
    """
    if operator in ("&", "|") and after.startswith(operator * 2):
        return _OPERAND_MISSING
    return _ASSIGNMENT if operator == "=" else _OPERATORS.get(operator, "")


def remedy_of_word(word: str) -> str:
    """Return the remedy for a word of JavaScript that rules do not have."""
    return _STATEMENTS.get(word, "A rule is one expression, without statements.")


def remedy_of_token(found: str, before: str, *, operand: bool) -> str:
    """Return the remedy for a token `found` that is not expected; `before` is the text before it.

    `operand` says that an operand was expected.
    """
    if found in _TYPOGRAPHIC:
        return "Write straight quotes, '…'."
    if operand and (found not in ")]" or before.rstrip()[-1:] in _OPERATOR_ENDS):
        return "" if found in "{}" else _OPERAND_MISSING
    last = _LAST_WORD.search(before[-_LONGEST_WORD:])
    word = found if found in _WORDS else last[1] if last else ""
    if word in _WORDS:
        return _WORDS[word]
    is_bracket = found in ")]}:"
    return "An opening bracket is missing." if is_bracket else "An operator is missing before it."
