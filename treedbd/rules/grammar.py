"""The grammar of expressions: their syntax tree, their static types, their parser, and its errors.

The syntax is a subset of JavaScript's expressions, loosest operators first:

    rule        = expression [ ";" ]
    expression  = disjunction [ "?" expression ":" expression ]
    disjunction = conjunction { "||" conjunction }
    conjunction = equality { "&&" equality }
    equality    = relation { ( "==" | "===" | "!=" | "!==" ) relation }
    relation    = sum { ( "<" | "<=" | ">" | ">=" ) sum }
    sum         = product { ( "+" | "-" ) product }
    product     = prefix { ( "*" | "/" | "%" ) prefix }
    prefix      = ( "!" | "-" ) prefix | postfix
    postfix     = primary { "." name | "[" expression "]" | "(" [ list ] ")" }
    primary     = name | number | string | "true" | "false" | "null" | pattern
                | "(" expression ")" | "[" [ list [ "," ] ] "]"
    list        = expression { "," expression }

Words that are not in the grammar (`typeof`, `in`, `var`, …), assignments, the comma elsewhere and
the bitwise operators are errors. Whitespace and comments are allowed between any two tokens.

The syntax tree is built here and read by `typecheck`, `compile` and `rights`. A chain of operators
of one level is one node with many terms, and `a ? b : c ? d : e` is one node with two arms, so the
length of a chain adds no depth. Brackets have no node of their own. Nodes compare by identity,
because `typecheck` keeps a type for each. `fold` visits them without recursion, in steps.

A `Type` is what is known of a value before any data is read. The tables beside it name the members
of each; `compile` implements them.

Tokens. What a token may be depends on whether an operand or an operator comes next: a slash begins
a regular expression where an operand is expected, and divides elsewhere. So there is one pattern
for each of the two states.

Theory of operation of the parser: operator precedence with a stack of the constructs that are still
open, so nothing here recurses, however deep the text is nested. A construct is opened when its
first operand or its bracket has been read, and closed, which makes a node of it, when all of its
operands have been. An operator closes the constructs that bind tighter; one of the same level
continues its chain. `value` is the operand that was read last, and what follows it decides whose
operand it is. The measures of a node, which the limits are about, are kept beside it only until the
construct around it is closed.

Errors. The error of a text that does not parse says what was found, and what JavaScript it may be.
A remedy is one short sentence for one of the mistakes that authors of rules make most, in the
syntax or in the types. It is a hint beside the text of an error, which is that of Firebase; it
may be empty.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast

import attrs

from treedbd.limits import RulesLimits
from treedbd.loop import Steps
from treedbd.rules.document import CONSTANTS, ExpressionError, suggest
from treedbd.rules.regex import Regex, parse_regex
from treedbd.tree.value import canonical_number

Result = TypeVar("Result")

_NODES_PER_STEP: Final = 200


@attrs.frozen(eq=False)
class AstNode:
    """What all nodes have: where they begin in the text."""

    offset: int


@attrs.frozen(eq=False)
class Literal(AstNode):
    """A number, a string, true, false or null."""

    value: int | float | str | bool | None


@attrs.frozen(eq=False)
class Pattern(AstNode):
    """A regular expression between slashes."""

    regex: Regex


@attrs.frozen(eq=False)
class ListLiteral(AstNode):
    """An array in square brackets."""

    items: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Variable(AstNode):
    """A name: `auth`, `now`, `root`, `data`, `newData`, `query` or a capture."""

    name: str


@attrs.frozen(eq=False)
class Member(AstNode):
    """`target.name`, also written `target['name']`; `name_offset` is where the name begins."""

    target: Expression
    name: str
    name_offset: int


@attrs.frozen(eq=False)
class Index(AstNode):
    """`target[index]` where the index is not a string literal.

    `bracket_offset` is that of the opening bracket.
    """

    target: Expression
    index: Expression
    bracket_offset: int


@attrs.frozen(eq=False)
class Call(AstNode):
    """`callee(arguments)`."""

    callee: Expression
    arguments: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Prefix(AstNode):
    """`!operand` or `-operand`."""

    operator: str
    operand: Expression


@attrs.frozen(eq=False)
class Logical(AstNode):
    """Terms joined by `&&`, or by `||`."""

    operator: str
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Binary(AstNode):
    """Terms joined from the left by operators of one level: one operator fewer than terms."""

    operators: tuple[str, ...]
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Conditional(AstNode):
    """`condition ? result : …` for each of the arms; `otherwise` where no condition is true."""

    arms: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


Expression: TypeAlias = (
    Literal
    | Pattern
    | ListLiteral
    | Variable
    | Member
    | Index
    | Call
    | Prefix
    | Logical
    | Binary
    | Conditional
)

Visit: TypeAlias = Generator[Expression, Any, Result]
"""Yields the nodes whose results it needs, is sent those results, and returns its own."""


def each(nodes: Iterable[Expression]) -> Visit[list[Any]]:
    """Return the results of several nodes, within a visit."""
    results = []
    for node in nodes:
        results.append((yield node))  # noqa: PERF401 - a comprehension cannot yield
    return results


def fold(
    visit: Callable[[Expression], Visit[Result]],
    leaves: Mapping[type[AstNode], Callable[[Any], Result]],
    root: Expression,
    results: dict[AstNode, Result] | None = None,
) -> Steps[Result]:
    """Return the result of `visit` for `root`; nodes are visited in the order it yields them.

    `leaves` has functions for the forms of node without operands: half of all nodes, which need no
    generator of their own. The result of each node is added to `results`, if given.
    """
    stack: list[tuple[Expression, Visit[Result]]] = []
    node = root
    remaining = _NODES_PER_STEP
    while True:
        remaining -= 1
        if not remaining:
            remaining = _NODES_PER_STEP
            yield
        leaf = leaves.get(type(node))
        result: Any = None
        if leaf is None:
            stack.append((node, visit(node)))
        else:
            result = leaf(node)
            if results is not None:
                results[node] = result
        # Continue the innermost visit until it needs the result of another node.
        while stack:
            try:
                node = stack[-1][1].send(result)
                break
            except StopIteration as stop:
                visited, _ = stack.pop()
                result = stop.value
                if results is not None:
                    results[visited] = result
        else:
            return cast(Result, result)


class Type(enum.Enum):
    """The type of an expression."""

    BOOLEAN = enum.auto()
    NUMBER = enum.auto()
    STRING = enum.auto()
    NULL = enum.auto()
    REGEX = enum.auto()
    SNAPSHOT = enum.auto()
    METHOD = enum.auto()
    """A method of a snapshot or of a string, named but not called."""
    VALUE = enum.auto()
    """The value of a node: a primitive whose type is unknown."""
    AUTH = enum.auto()
    """`auth` and everything below it."""
    QUERY = enum.auto()
    QUERY_VALUE = enum.auto()
    MIXED = enum.auto()
    """One of several types that have nothing in common."""


@attrs.frozen
class MethodSignature:
    """The parameters and the result type of a method of a snapshot or of a string."""

    parameters: tuple[str, ...]
    """`string`, `regex` or `list` for each argument."""
    returns: Type


_TEST: Final = MethodSignature((), Type.BOOLEAN)
_TEST_STRING: Final = MethodSignature(("string",), Type.BOOLEAN)

SNAPSHOT_METHODS: Final[Mapping[str, MethodSignature]] = {
    "val": MethodSignature((), Type.VALUE),
    "child": MethodSignature(("string",), Type.SNAPSHOT),
    "parent": MethodSignature((), Type.SNAPSHOT),
    "hasChild": _TEST_STRING,
    "hasChildren": MethodSignature(("list",), Type.BOOLEAN),
    "exists": _TEST,
    "getPriority": MethodSignature((), Type.VALUE),
    "isNumber": _TEST,
    "isString": _TEST,
    "isBoolean": _TEST,
}

STRING_METHODS: Final[Mapping[str, MethodSignature]] = {
    "contains": _TEST_STRING,
    "beginsWith": _TEST_STRING,
    "endsWith": _TEST_STRING,
    "replace": MethodSignature(("string", "string"), Type.STRING),
    "toLowerCase": MethodSignature((), Type.STRING),
    "toUpperCase": MethodSignature((), Type.STRING),
    "matches": MethodSignature(("regex",), Type.BOOLEAN),
}

QUERY_MEMBERS: Final[Mapping[str, Type]] = {
    "orderByKey": Type.BOOLEAN,
    "orderByPriority": Type.BOOLEAN,
    "orderByValue": Type.BOOLEAN,
    "orderByChild": Type.QUERY_VALUE,
    "startAt": Type.QUERY_VALUE,
    "endAt": Type.QUERY_VALUE,
    "equalTo": Type.QUERY_VALUE,
    "limitToFirst": Type.QUERY_VALUE,
    "limitToLast": Type.QUERY_VALUE,
    "where": Type.BOOLEAN,
}

NUMBERS: Final = frozenset({Type.NUMBER, Type.VALUE, Type.AUTH, Type.QUERY_VALUE, Type.MIXED})
"""Operands of arithmetic."""
ORDERED: Final = NUMBERS | {Type.STRING}
"""Operands of `+` and of the orderings."""
PRIMITIVES: Final = ORDERED | {Type.BOOLEAN, Type.NULL}
"""Operands of the equality operators."""
STRINGS: Final = frozenset({Type.STRING, Type.VALUE, Type.AUTH, Type.MIXED})
"""Arguments of a method that expects a string."""
ABSORBING: Final = frozenset({Type.STRING, Type.VALUE, Type.AUTH})
"""If branches of a conditional differ and one has such a type, the result is a Value."""
# Atomic groups, not possessive ones: where one of these has failed in its middle, Python before
# 3.11.5 goes on from there, not from where it began.
_BLANKS: Final = r"(?>(?:\s+|//[^\n]*|/\*[\s\S]*?\*/)*)"
_NAME: Final = r"(?:[^\W\d]|\$)[\w$]*"
_NUMBER: Final = (
    r"0[xX][0-9A-Fa-f]+|(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
)
_STRING: Final = r'"(?>(?:[^"\\\r\n]|\\[^\r\n])*)"' + r"|'(?>(?:[^'\\\r\n]|\\[^\r\n])*)'"
_REGEX: Final = (
    r"/(?![*/])(?:[^/\\\[\r\n]|\\[^\r\n]|\[(?>(?:[^\]\\\r\n]|\\[^\r\n])*)\])+/[A-Za-z0-9_$]*"
)

_BLANKS_PATTERN: Final = re.compile(_BLANKS)
_NAME_PATTERN: Final = re.compile(f"{_BLANKS}({_NAME})")
_OPERAND_PATTERN: Final = re.compile(
    rf"{_BLANKS}(?:(?P<name>{_NAME})|(?P<number>{_NUMBER})|(?P<string>{_STRING})"
    rf"|(?P<pattern>{_REGEX})|(?P<prefix>[!-])|(?P<opening>[(\[])|(?P<closing>[)\]]))"
)
"""What may come where an operand is expected; a closing bracket ends an empty list."""
_OPERATOR_PATTERN: Final = re.compile(
    rf"{_BLANKS}(?:(?P<operator>\|\||&&|[=!]==?|[<>]=?|[-+*/%])|(?P<member>\.)|(?P<opening>[(\[])"
    r"|(?P<closing>[)\]])|(?P<comma>,)|(?P<choice>\?)|(?P<otherwise>:)|(?P<end>;|\Z))"
)
"""What may follow an operand."""
_TOKEN_PATTERN: Final = re.compile(
    rf"{_NAME}|{_NUMBER}|{_STRING}|{_REGEX}|===?|!==?|[<>]=?|\|\||&&|[\s\S]"
)
"""Any token, to be shown in an error."""

_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}


def _read_number(token: str, offset: int) -> int | float:
    """Return the value of a number; raise `ExpressionError` if it is out of range."""
    try:
        if token[:2] in ("0x", "0X"):
            return canonical_number(int(token, 16))
        if token.isdigit() and len(token) < 20:
            return canonical_number(int(token))
        return canonical_number(float(token))
    except (ValueError, OverflowError):
        raise ExpressionError(offset, "The number is out of range.") from None


def _read_string(token: str, offset: int) -> str:
    """Return the value of a string in quotes; raise `ExpressionError` for half a surrogate pair."""
    if "\\" not in token:
        return token[1:-1]
    text = _ESCAPE.sub(_read_escape, token[1:-1])
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ExpressionError(offset, "A string must not hold half a surrogate pair.") from None


def _read_escape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[3])


_OPEN: Final = 0
"""The level of what only a closing bracket, or the colon of a choice, can close."""
_CHOICE: Final = 1
_LEVELS: Final = {
    **dict.fromkeys(["||"], 2),
    **dict.fromkeys(["&&"], 3),
    **dict.fromkeys(["==", "===", "!=", "!=="], 4),
    **dict.fromkeys(["<", "<=", ">", ">="], 5),
    **dict.fromkeys(["+", "-"], 6),
    **dict.fromkeys(["*", "/", "%"], 7),
}
"""The levels of the operators between two operands: a higher one binds tighter."""
_PREFIX: Final = 8


class _Form(enum.Enum):
    """What a construct is."""

    WHOLE = enum.auto()
    """The whole text, which no token closes."""
    GROUP = enum.auto()
    LIST = enum.auto()
    CALL = enum.auto()
    INDEX = enum.auto()
    CONDITIONAL = enum.auto()
    LOGICAL = enum.auto()
    BINARY = enum.auto()
    PREFIX = enum.auto()


_FORMS_CLOSED_BY: Final = {")": (_Form.GROUP, _Form.CALL), "]": (_Form.LIST, _Form.INDEX)}


@attrs.define(eq=False)
class _Construct:
    """A construct that is still open.

    `level` is that of its operators; `operands` and `operators` are those read so far, `depth` and
    `brackets` the greatest of these operands.
    """

    form: _Form
    level: int
    offset: int
    operands: list[Expression] = attrs.field(factory=list)
    operators: list[str] = attrs.field(factory=list)
    depth: int = 0
    brackets: int = 0

    def node(self) -> Expression:
        """Return the node of the construct; a group is the node inside it."""
        return _NODES[self.form](self)


def _conditional(construct: _Construct) -> Expression:
    *terms, otherwise = construct.operands
    arms = tuple(zip(terms[::2], terms[1::2], strict=True))
    return Conditional(construct.offset, arms, otherwise)


def _call(construct: _Construct) -> Expression:
    callee, *arguments = construct.operands
    return Call(callee.offset, callee, tuple(arguments))


def _index(construct: _Construct) -> Expression:
    target, index = construct.operands
    if isinstance(index, Literal) and isinstance(index.value, str):
        return Member(target.offset, target, index.value, index.offset)
    return Index(target.offset, target, index, construct.offset)


_NODES: Final[dict[_Form, Callable[[_Construct], Expression]]] = {
    _Form.GROUP: lambda group: group.operands[0],
    _Form.LIST: lambda items: ListLiteral(items.offset, tuple(items.operands)),
    _Form.CALL: _call,
    _Form.INDEX: _index,
    _Form.CONDITIONAL: _conditional,
    _Form.LOGICAL: lambda chain: Logical(chain.offset, chain.operators[0], tuple(chain.operands)),
    _Form.BINARY: lambda chain: Binary(chain.offset, tuple(chain.operators), tuple(chain.operands)),
    _Form.PREFIX: lambda prefix: Prefix(prefix.offset, prefix.operators[0], prefix.operands[0]),
}
_EXTRA_DEPTH: Final = 50
"""A pair of brackets usually adds two levels of nodes; this many more are allowed."""
_TOKENS_PER_STEP: Final = 200


def parse_expression(text: str, limits: RulesLimits) -> Steps[Expression]:
    """Parse one expression in steps; raise `ExpressionError`."""
    if len(text.encode("utf-8", "surrogatepass")) > limits.expression_bytes:
        raise ExpressionError(0, f"The expression is longer than {limits.expression_bytes} bytes.")
    return (yield from _ExpressionParser(text, limits).parse())


class _ExpressionParser:
    """The parse of one expression; a method for each form of token, and for what they share."""

    def __init__(self, text: str, limits: RulesLimits) -> None:
        self.text = text
        self.limits = limits
        self.at = 0
        self.is_complete = False
        self.expects_operand = True
        self.constructs = [_Construct(_Form.WHOLE, _OPEN, 0)]
        self.value: Expression = Literal(0, None)
        self.depth = 0
        self.brackets = 0

    def parse(self) -> Steps[Expression]:
        while True:
            for _ in range(_TOKENS_PER_STEP):
                found = (_OPERAND_PATTERN if self.expects_operand else _OPERATOR_PATTERN).match(
                    self.text, self.at
                )
                if found is None or found.lastgroup is None:
                    self.fail()
                begin, end = found.span(found.lastgroup)
                _METHODS[found.lastgroup](self, self.text[begin:end], begin)
                self.at = max(self.at, end)
                if self.is_complete:
                    return self.value
            yield

    def fail(self) -> NoReturn:
        raise _syntax_error(self.text, self.at, operand=self.expects_operand)

    # Operands.

    def set_operand(self, value: Expression, depth: int = 0, brackets: int = 0) -> None:
        """Make `value` the operand that was read last."""
        limit = self.limits.nesting
        if brackets > limit or depth > 2 * limit + _EXTRA_DEPTH:
            text = f"The expression is nested deeper than {limit} levels."
            raise ExpressionError(value.offset, text)
        self.value, self.depth, self.brackets = value, depth, brackets
        self.expects_operand = False

    def name(self, name: str, offset: int) -> None:
        if name in CONSTANTS:
            self.set_operand(Literal(offset, CONSTANTS[name]))
        else:
            self.set_operand(Variable(offset, name))

    def number(self, literal: str, offset: int) -> None:
        self.set_operand(Literal(offset, _read_number(literal, offset)))

    def string(self, literal: str, offset: int) -> None:
        self.set_operand(Literal(offset, _read_string(literal, offset)))

    def pattern(self, literal: str, offset: int) -> None:
        pattern, _, flags = literal[1:].rpartition("/")
        regex = parse_regex(pattern, flags, offset, self.limits.regex_size)
        self.set_operand(Pattern(offset, regex))

    # Constructs.

    def open(self, form: _Form, level: int, offset: int) -> _Construct:
        """Begin a construct; an operand comes next."""
        construct = _Construct(form, level, offset)
        self.constructs.append(construct)
        self.expects_operand = True
        return construct

    def add_operand(self, construct: _Construct) -> None:
        """Give the operand that was read last to a construct; another one comes next."""
        construct.operands.append(self.value)
        construct.depth = max(construct.depth, self.depth)
        construct.brackets = max(construct.brackets, self.brackets)
        self.expects_operand = True

    def close(self) -> None:
        """Make the innermost construct the operand that was read last."""
        construct = self.constructs.pop()
        has_brackets = construct.level == _OPEN
        # A group has no node, so only its brackets count.
        depth = construct.depth + (construct.form is not _Form.GROUP)
        self.set_operand(construct.node(), depth, construct.brackets + has_brackets)

    def close_tighter(self, level: int) -> _Construct:
        """Close the constructs that bind tighter than a level; return the one around them."""
        construct = self.constructs[-1]
        while construct.level > level:
            self.add_operand(construct)
            self.close()
            construct = self.constructs[-1]
        return construct

    def check_length(self, construct: _Construct, terms: int) -> None:
        limit = self.limits.chain_terms
        if terms > limit:
            raise ExpressionError(construct.offset, f"A chain has more than {limit} terms.")

    # Operators and brackets.

    def prefix(self, operator: str, offset: int) -> None:
        self.open(_Form.PREFIX, _PREFIX, offset).operators.append(operator)

    def operator(self, operator: str, _: int) -> None:
        level = _LEVELS[operator]
        construct = self.close_tighter(level)
        if construct.level != level:
            form = _Form.LOGICAL if operator in ("||", "&&") else _Form.BINARY
            construct = self.open(form, level, self.value.offset)
        self.add_operand(construct)
        construct.operators.append(operator)
        self.check_length(construct, len(construct.operators) + 1)

    def choice(self, _: str, __: int) -> None:
        construct = self.close_tighter(_CHOICE)
        if construct.level != _CHOICE:
            construct = self.open(_Form.CONDITIONAL, _CHOICE, self.value.offset)
        self.add_operand(construct)
        # What follows may be any expression, up to the colon.
        construct.level = _OPEN
        self.check_length(construct, len(construct.operands) // 2 + 1)

    def otherwise(self, _: str, __: int) -> None:
        construct = self.close_tighter(_OPEN)
        if construct.form is not _Form.CONDITIONAL:
            self.fail()
        self.add_operand(construct)
        construct.level = _CHOICE

    def opening(self, bracket: str, offset: int) -> None:
        if self.expects_operand:
            self.open(_Form.GROUP if bracket == "(" else _Form.LIST, _OPEN, offset)
        else:
            construct = self.open(_Form.CALL if bracket == "(" else _Form.INDEX, _OPEN, offset)
            self.add_operand(construct)

    def closing(self, bracket: str, _: int) -> None:
        if not self.expects_operand:
            construct = self.close_tighter(_OPEN)
            self.add_operand(construct)
            is_complete = True
        else:
            construct = self.constructs[-1]
            # A list may be empty, or end in a comma; a call has no operand then but its callee.
            is_complete = construct.form is _Form.LIST or (
                construct.form is _Form.CALL and len(construct.operands) == 1
            )
        if construct.form not in _FORMS_CLOSED_BY[bracket] or not is_complete:
            self.fail()
        self.close()

    def comma(self, _: str, __: int) -> None:
        construct = self.close_tighter(_OPEN)
        if construct.form not in (_Form.LIST, _Form.CALL):
            self.fail()
        self.add_operand(construct)

    def member(self, _: str, offset: int) -> None:
        self.at = offset + 1
        name = _NAME_PATTERN.match(self.text, self.at)
        if name is None:
            self.fail()
        self.at = name.end()
        value = Member(self.value.offset, self.value, name[1], name.start(1))
        self.set_operand(value, self.depth + 1, self.brackets)

    def end(self, semicolon: str, offset: int) -> None:
        if self.close_tighter(_OPEN).form is not _Form.WHOLE:
            self.fail()
        rest = _BLANKS_PATTERN.match(self.text, offset + len(semicolon))
        if rest is not None and rest.end() < len(self.text):
            text = "A rule must be a single expression."
            raise ExpressionError(rest.end(), text, _JOIN_RULES)
        self.is_complete = True


_METHODS: Final[dict[str, Callable[[_ExpressionParser, str, int], None]]] = {
    form: getattr(_ExpressionParser, form)
    for form in (*_OPERAND_PATTERN.groupindex, *_OPERATOR_PATTERN.groupindex)
}
"""The method for each form of token: it is given the token and its offset."""
_CALL_IT: Final = "Call the method, with () after its name."
_TAKE_VALUE: Final = "Add .val() for the value of the node."
_QUOTE_KEY: Final = "Write the key in quotes."
LIST_NAMES: Final = "Write the names in brackets, as in hasChildren(['name'])."
WRITE_PATTERN: Final = "Write the pattern between slashes instead of quotes, as in matches(/^a/)."
READS_ONLY: Final = "Write data: a read changes nothing."
_NOT_A_METHOD: Final = "Leave out the () after it."
USE_CHILD: Final = "Write .child(…) for a child of a node."
_JOIN_RULES: Final = "Join conditions by && or ||."

_FOREIGN_VARIABLES: Final[Mapping[str, str]] = {
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
_FOREIGN_MEMBERS: Final[Mapping[str, str]] = {
    "isInteger": "isNumber()",
    "isArray": "hasChildren()",
    "isObject": "hasChildren()",
    "startsWith": "beginsWith()",
    "includes": "contains()",
    "indexOf": "contains()",
    "test": "matches()",
}
_CONDITION_REMEDIES: Final[Mapping[Type, str]] = {
    Type.SNAPSHOT: "Add .exists() for whether the node is there.",
    Type.METHOD: _CALL_IT,
    Type.QUERY: "Name a member, as in query.limitToLast <= 100.",
    Type.REGEX: "Match a string with it, as in auth.uid.matches(/^a/).",
    Type.NUMBER: "Compare it, as in … > 0.",
    Type.STRING: "Compare it, as in … == 'a'.",
    Type.NULL: "Compare something with it, as in auth != null.",
}
_OPERAND_REMEDIES: Final[Mapping[Type, str]] = {
    Type.SNAPSHOT: _TAKE_VALUE,
    Type.METHOD: _CALL_IT,
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
    if name in _FOREIGN_VARIABLES:
        return f"Write {_FOREIGN_VARIABLES[name]}."
    if name.startswith("$"):
        return f"No node above this rule has the key '{name}'."
    return "" if is_whole else f"If it is a text, write it in quotes: '{name}'."


def remedy_of_member(name: str, known: Collection[str]) -> str:
    """Return the remedy for an unknown member of something that has the members `known`."""
    return suggest(name, known) or (
        f"Write {_FOREIGN_MEMBERS[name]}." if name in _FOREIGN_MEMBERS else ""
    )


def remedy_of_target(target: Type) -> str:
    """Return the remedy for a member of something that has none."""
    return _CALL_IT if target is Type.METHOD else "Only nodes, texts, auth and query have members."


def remedy_of_condition(found: Type, node: Expression) -> str:
    """Return the remedy for what should be true or false."""
    if isinstance(node, Literal) and isinstance(node.value, str):
        return f"Compare it with something: x == 'a' || x == {node.value!r}."
    return _CONDITION_REMEDIES.get(found, "Compare it, as in … == true, or … != null.")


def remedy_of_operand(found: Type) -> str:
    """Return the remedy for an operand of a comparison or a calculation."""
    return _OPERAND_REMEDIES.get(found, "")


def remedy_of_call(callee: Expression, target: Type) -> str:
    """Return the remedy for a call of something that is not a method."""
    if isinstance(callee, Variable):
        return USE_CHILD if target is Type.SNAPSHOT else ""
    return _NOT_A_METHOD


def remedy_of_string(found: Type) -> str:
    """Return the remedy for an argument that should be a string."""
    return _QUOTE_KEY if found is Type.NUMBER else remedy_of_operand(found)


_WRITE_EQUALS: Final = "Write == to compare."
_OPERATOR_REMEDIES: Final[Mapping[str, str]] = {
    "&": "Write && for and.",
    "|": "Write || for or.",
    ",": _JOIN_RULES,
    "in": "Write hasChild(…) for whether a key is there.",
    "instanceof": "Use isString(), isNumber() or isBoolean().",
    "**": "Multiply by *.",
}
_WORD_REMEDIES: Final[Mapping[str, str]] = {
    "and": "Write && for and.",
    "or": "Write || for or.",
    "not": "Write ! for not.",
    "is": _WRITE_EQUALS,
}
_STATEMENT_REMEDIES: Final[Mapping[str, str]] = {
    "return": "Leave it out: a rule is an expression.",
    "typeof": "Use isString(), isNumber() or isBoolean().",
}
_TYPOGRAPHIC: Final = "\u2018\u2019\u201c\u201d"  # what word processors make of quotes
_LAST_WORD: Final = re.compile(r"(\w+)\s*\Z")
_OPERATOR_ENDS: Final = tuple("=!<>+-*/%&|,([?:")
_OPERAND_MISSING: Final = "An operand is missing before it."


def _remedy_of_operator(operator: str, after: str = "") -> str:
    """Return the remedy for an operator of JavaScript that rules do not have.

    `after` is the text from it on: `&&` where an operand is expected begins with such an operator.
    """
    if operator in ("&", "|") and after.startswith(operator * 2):
        return _OPERAND_MISSING
    return _WRITE_EQUALS if operator == "=" else _OPERATOR_REMEDIES.get(operator, "")


def _remedy_of_token(found: str, before: str, *, operand: bool) -> str:
    """Return the remedy for a token `found` that is not expected; `before` is the text before it.

    `operand` says that an operand was expected.
    """
    if found in _TYPOGRAPHIC:
        return "Write straight quotes, '…'."
    if operand and (found not in ")]" or before.rstrip()[-1:] in _OPERATOR_ENDS):
        return "" if found in "{}" else _OPERAND_MISSING
    last = _LAST_WORD.search(before[-_LONGEST_WORD:])
    word = found if found in _WORD_REMEDIES else last[1] if last else ""
    if word in _WORD_REMEDIES:
        return _WORD_REMEDIES[word]
    is_bracket = found in ")]}:"
    return "An opening bracket is missing." if is_bracket else "An operator is missing before it."


_ASSIGNMENT = re.compile(r"(?:[-+*/%&|^]|\*\*|<<|>>>?)?=(?!=)")
_UNSUPPORTED_OPERATOR = re.compile(r"\*\*|<<|>>>?|&|\||\^|~|,|(?:in|instanceof)\b")
_UNSUPPORTED_WORD = re.compile(r"\b(typeof|void|delete|new|var|let|const|function|return)\s+$")
_LONGEST_WORD: Final = 40
"""Characters before an error that are searched for such a word."""


def _syntax_error(text: str, at: int, *, operand: bool) -> ExpressionError:
    """Return the error at the first token from `at`, where the parser cannot go on.

    `operand` says that an operand was expected there, otherwise an operator or an end.
    """
    blanks = _BLANKS_PATTERN.match(text, at)
    offset = blanks.end() if blanks else at
    first = text[offset : offset + 1]
    if not first:
        return ExpressionError(offset, "Unexpected end of expression.")
    if operand and first == "/":
        text = "unterminated regular expression literal"
        return ExpressionError(offset, text, "Close the pattern with a slash.")
    if operand and first in "\"'":
        hint = f"Close the string with {first}."
        return ExpressionError(offset, "Unterminated string literal.", hint)
    unsupported = _find_unsupported(text, offset)
    if unsupported:
        return unsupported
    token = _TOKEN_PATTERN.match(text, offset)
    shown = token[0] if token else first
    hint = _remedy_of_token(shown, text[:offset], operand=operand)
    return ExpressionError(offset, f"Unexpected '{shown}'.", hint)


def _find_unsupported(text: str, offset: int) -> ExpressionError | None:
    """Return the error for JavaScript that this language does not support, None for other text."""
    assignment = _ASSIGNMENT.match(text, offset)
    if assignment:
        error_text = "Rule expressions may not contain assignments."
        return ExpressionError(offset, error_text, _remedy_of_operator(assignment[0]))
    if text.startswith("**", offset - 1):
        error_text = "Rule expressions may not contain operator **."
        return ExpressionError(offset - 1, error_text, _remedy_of_operator("**"))
    operator = _UNSUPPORTED_OPERATOR.match(text, offset)
    if operator:
        error_text = f"Rule expressions may not contain operator {operator[0]}."
        return ExpressionError(
            offset, error_text, _remedy_of_operator(operator[0], text[offset : offset + 2])
        )
    word = _UNSUPPORTED_WORD.search(text, max(0, offset - _LONGEST_WORD), offset)
    if word:
        error_text = f"Rule expressions may not contain '{word[1]}'."
        remedy = _STATEMENT_REMEDIES.get(word[1], "A rule is one expression, without statements.")
        return ExpressionError(word.start(1), error_text, remedy)
    return None
