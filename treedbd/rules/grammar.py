r"""The grammar of expressions, and the parser that builds their syntax tree.

The grammar below is the reference of the syntax: a subset of JavaScript's expressions, loosest
operators first. Words that are not in it (`typeof`, `in`, `var`, …), assignments, the comma and
the bitwise operators are errors. Whitespace and comments are allowed between any two tokens.

Theory of operation: an LALR parser calls `_AstBuilder` for each production it has reduced,
innermost first, so nothing here recurses, however deep the text is nested; the builder raises an
error as soon as a node exceeds a limit. The lexer is contextual: the state of the parser decides
whether a slash divides or begins a regular expression. `_explain` words the syntax errors.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

import attrs
from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from treedbd.limits import RulesLimits
from treedbd.rules.ast import (
    Binary,
    Call,
    Conditional,
    Expression,
    Index,
    ListLiteral,
    Literal,
    Logical,
    Member,
    Pattern,
    Prefix,
    Variable,
)
from treedbd.rules.errors import ExpressionError
from treedbd.rules.regex import parse_regex
from treedbd.tree.number import canonical_number

GRAMMAR: Final = r"""
?start: expression _SEMICOLON?

?expression: disjunction
    | disjunction _CHOOSE expression _ELSE expression -> conditional
?disjunction: conjunction
    | conjunction (OR conjunction)+                   -> logical
?conjunction: equality
    | equality (AND equality)+                        -> logical
?equality: relation
    | relation ((EQUAL | UNEQUAL) relation)+          -> binary
?relation: sum
    | sum (ORDER sum)+                                -> binary
?sum: product
    | product ((PLUS | MINUS) product)+               -> binary
?product: prefix
    | prefix ((TIMES | SLASH | PERCENT) prefix)+      -> binary
?prefix: postfix
    | (NOT | MINUS) prefix                            -> prefixed
?postfix: primary
    | postfix _DOT NAME                               -> member
    | postfix OPEN expression _CLOSE                 -> index
    | postfix _LEFT _RIGHT                            -> call
    | postfix _LEFT arguments _RIGHT                  -> call
?primary: _LEFT expression _RIGHT                     -> group
    | NAME                                            -> variable
    | NUMBER                                          -> number
    | STRING                                          -> string
    | (TRUE | FALSE | NULL)                           -> constant
    | REGEX                                           -> pattern
    | OPEN _CLOSE                                     -> list_literal
    | OPEN arguments _CLOSE                           -> list_literal
arguments: expression (_COMMA expression)*

TRUE: "true"
FALSE: "false"
NULL: "null"
NAME: /(?:[^\W\d]|\$)[\w$]*/
NUMBER: /0[xX][0-9A-Fa-f]+|(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
STRING: /"(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*'/
REGEX: /\/(?![*\/])(?:[^\/\\\[\r\n]|\\[^\r\n]|\[(?:[^\]\\\r\n]|\\[^\r\n])*\])+\/[A-Za-z0-9_$]*/
OR: "||"
AND: "&&"
EQUAL: /===?/
UNEQUAL: /!==?/
ORDER: /[<>]=?/
PLUS: "+"
MINUS: "-"
TIMES: "*"
SLASH: "/"
PERCENT: "%"
NOT: "!"
OPEN: "["
_CLOSE: "]"
_LEFT: "("
_RIGHT: ")"
_DOT: "."
_COMMA: ","
_CHOOSE: "?"
_ELSE: ":"
_SEMICOLON: ";"
BLANK: /\s+/
COMMENT.2: /\/\/[^\n]*|\/\*[\s\S]*?\*\//
%ignore BLANK
%ignore COMMENT
"""

_EXTRA_DEPTH: Final = 50
"""A pair of brackets usually adds two levels of nodes; this many more are allowed."""
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_LETTERS: Final = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
}
_ASSIGNMENT = re.compile(r"(?:[-+*/%&|^]|\*\*|<<|>>>?)?=(?!=)")
_UNSUPPORTED_OPERATOR = re.compile(r"\*\*|<<|>>>?|&|\||\^|~|,|(?:in|instanceof)\b")
_UNSUPPORTED_WORD = re.compile(r"\b(typeof|void|delete|new|var|let|const|function|return)\s+$")

_Children: TypeAlias = list[Any]
_ParserError: TypeAlias = UnexpectedToken | UnexpectedCharacters


def parse_expression(text: str, limits: RulesLimits) -> Expression:
    """Parse one expression; raise `ExpressionError`."""
    if len(text.encode("utf-8", "surrogatepass")) > limits.expression_bytes:
        raise ExpressionError(0, f"The expression is longer than {limits.expression_bytes} bytes.")
    try:
        return cast(Expression, _parser(limits).parse(text))
    except (UnexpectedToken, UnexpectedCharacters) as error:
        raise _explain(text, error) from None


@lru_cache(maxsize=4)
def _parser(limits: RulesLimits) -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="contextual",
        transformer=_AstBuilder(limits),
        maybe_placeholders=False,
        propagate_positions=False,
    )


class _AstBuilder:
    """Makes the nodes; one method for each production that the grammar names."""

    def __init__(self, limits: RulesLimits) -> None:
        self.limits = limits

    def measure(
        self, offset: int, *children: Expression, brackets: int = 0
    ) -> tuple[int, int, int]:
        """Return the offset, depth and brackets of a node that has these children."""
        limit = self.limits.nesting
        depth = 1 + max((child.depth for child in children), default=0)
        brackets += max((child.brackets for child in children), default=0)
        if brackets > limit or depth > 2 * limit + _EXTRA_DEPTH:
            raise ExpressionError(offset, f"The expression is nested deeper than {limit} levels.")
        return offset, depth, brackets

    def check_length(self, offset: int, terms: tuple[object, ...]) -> None:
        if len(terms) > self.limits.chain_terms:
            raise ExpressionError(offset, f"A chain has more than {self.limits.chain_terms} terms.")

    def conditional(self, children: _Children) -> Expression:
        condition, result, otherwise = children
        offset = condition.offset
        if not isinstance(otherwise, Conditional):
            measures = self.measure(offset, condition, result, otherwise)
            return Conditional(*measures, ((condition, result),), otherwise)
        arms = ((condition, result), *otherwise.arms)
        self.check_length(offset, arms)
        _, depth, brackets = self.measure(offset, condition, result)
        depth, brackets = max(depth, otherwise.depth), max(brackets, otherwise.brackets)
        return Conditional(offset, depth, brackets, arms, otherwise.otherwise)

    def logical(self, children: _Children) -> Expression:
        terms = tuple(children[::2])
        offset = terms[0].offset
        self.check_length(offset, terms)
        return Logical(*self.measure(offset, *terms), str(children[1]), terms)

    def binary(self, children: _Children) -> Expression:
        terms = tuple(children[::2])
        offset = terms[0].offset
        self.check_length(offset, terms)
        return Binary(*self.measure(offset, *terms), tuple(map(str, children[1::2])), terms)

    def prefixed(self, children: _Children) -> Expression:
        operator, operand = children
        return Prefix(*self.measure(operator.start_pos, operand), str(operator), operand)

    def member(self, children: _Children) -> Expression:
        target, name = children
        return Member(*self.measure(target.offset, target), target, str(name))

    def index(self, children: _Children) -> Expression:
        target, _, index = children
        measures = self.measure(target.offset, target, index, brackets=1)
        if isinstance(index, Literal) and isinstance(index.value, str):
            return Member(*measures, target, index.value)
        return Index(*measures, target, index)

    def arguments(self, children: _Children) -> tuple[Expression, ...]:
        return tuple(children)

    def call(self, children: _Children) -> Expression:
        callee = children[0]
        arguments = children[1] if len(children) > 1 else ()
        return Call(*self.measure(callee.offset, callee, *arguments, brackets=1), callee, arguments)

    def group(self, children: _Children) -> Expression:
        inner: Expression = children[0]
        _, _, brackets = self.measure(inner.offset, inner, brackets=1)
        return attrs.evolve(inner, brackets=brackets)

    def variable(self, children: _Children) -> Expression:
        return Variable(children[0].start_pos, 0, 0, str(children[0]))

    def number(self, children: _Children) -> Expression:
        (token,) = children
        try:
            return Literal(token.start_pos, 0, 0, _read_number(token))
        except ValueError:
            raise ExpressionError(token.start_pos, "The number is out of range.") from None

    def string(self, children: _Children) -> Expression:
        (token,) = children
        return Literal(token.start_pos, 0, 0, _read_string(token))

    def constant(self, children: _Children) -> Expression:
        (token,) = children
        return Literal(token.start_pos, 0, 0, _CONSTANTS[token])

    def pattern(self, children: _Children) -> Expression:
        (token,) = children
        pattern, _, flags = token[1:].rpartition("/")
        offset = token.start_pos
        return Pattern(offset, 0, 0, parse_regex(pattern, flags, offset, self.limits.regex_size))

    def list_literal(self, children: _Children) -> Expression:
        offset = children[0].start_pos
        items = children[1] if len(children) > 1 else ()
        return ListLiteral(*self.measure(offset, *items, brackets=1), items)


def _read_number(token: str) -> int | float:
    if token[:2] in ("0x", "0X"):
        return canonical_number(int(token, 16))
    if token.isdigit() and len(token) < 20:
        return canonical_number(int(token))
    return canonical_number(float(token))


def _read_string(token: Token) -> str:
    if "\\" not in token:
        return token[1:-1]
    text = _ESCAPE.sub(_read_escape, token[1:-1])
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ExpressionError(
            token.start_pos or 0, "A string must not hold half a surrogate pair."
        ) from None


def _read_escape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[3])


def _explain(text: str, error: _ParserError) -> ExpressionError:
    """Return the error at the position where the parser stopped."""
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return ExpressionError(len(text), "Unexpected end of expression.")
    offset = error.pos_in_stream or 0
    rest, expected = text[offset:], _expected(error)
    if rest.startswith("/") and "REGEX" in expected:
        return ExpressionError(offset, "unterminated regular expression literal")
    if rest[:1] in ('"', "'") and "STRING" in expected:
        return ExpressionError(offset, "Unterminated string literal.")
    if "$END" in expected and text[:offset].rstrip().endswith(";"):
        return ExpressionError(offset, "A rule must be a single expression.")
    unsupported = _find_unsupported(text, offset)
    if unsupported:
        return unsupported
    shown = error.token if isinstance(error, UnexpectedToken) else rest[:1]
    return ExpressionError(offset, f"Unexpected '{shown}'.")


def _find_unsupported(text: str, offset: int) -> ExpressionError | None:
    """Return the error for JavaScript that this language does not support, None for other text."""
    if _ASSIGNMENT.match(text, offset):
        return ExpressionError(offset, "Rule expressions may not contain assignments.")
    if text.startswith("**", offset - 1):
        return ExpressionError(offset - 1, "Rule expressions may not contain operator **.")
    operator = _UNSUPPORTED_OPERATOR.match(text, offset)
    if operator:
        return ExpressionError(offset, f"Rule expressions may not contain operator {operator[0]}.")
    word = _UNSUPPORTED_WORD.search(text, 0, offset)
    if word:
        return ExpressionError(word.start(1), f"Rule expressions may not contain '{word[1]}'.")
    return None


def _expected(error: _ParserError) -> set[str]:
    """Return the names of the terminals that the parser would have accepted."""
    if isinstance(error, UnexpectedToken):
        return set(error.accepts or error.expected)
    return set(error.allowed or ())
