"""The grammar: how strong the operators are, what is no expression, how much is too much."""

from __future__ import annotations

import time

import pytest

from tests.rules.asking import LIMITS, holds
from treedbd.rules.expression import (
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
from treedbd.rules.grammar import parse_expression
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import Fault


def shown(part: Expression) -> str:  # noqa: C901, PLR0911 - one line for each kind of part
    """Print an expression with all its brackets."""
    match part:
        case Literal(value=value):
            return repr(value)
        case Pattern():
            return "regex"
        case Variable(name=name):
            return name
        case ListLiteral(items=items):
            return f"[{', '.join(map(shown, items))}]"
        case Member(target=target, name=name):
            return f"{shown(target)}.{name}"
        case Index(target=target, index=index):
            return f"{shown(target)}[{shown(index)}]"
        case Call(callee=callee, arguments=arguments):
            return f"{shown(callee)}({', '.join(map(shown, arguments))})"
        case Prefix(operator=operator, operand=operand):
            return f"({operator}{shown(operand)})"
        case Logical(operator=operator, terms=terms):
            return f"({f' {operator} '.join(map(shown, terms))})"
        case Binary(operators=operators, terms=terms):
            text = shown(terms[0])
            for operator, term in zip(operators, terms[1:], strict=True):
                text = f"({text} {operator} {shown(term)})"
            return text
        case Conditional(arms=arms, otherwise=otherwise):
            tests = [f"{shown(condition)} ? {shown(result)} : " for condition, result in arms]
            return f"({''.join(tests)}{shown(otherwise)})"


def parsed(text: str) -> str:
    return shown(parse_expression(text, LIMITS))


def complaint(text: str, limits: RulesLimits = LIMITS) -> tuple[int, str]:
    with pytest.raises(Fault) as caught:
        parse_expression(text, limits)
    return caught.value.at, caught.value.text


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a || b && c == d < e + f * -g", "(a || (b && (c == (d < (e + (f * (-g)))))))"),
        ("a * b + c < d == e && f || g", "((((((a * b) + c) < d) == e) && f) || g)"),
        ("a ? b : c ? d : e", "(a ? b : c ? d : e)"),
        ("a ? b ? c : d : e", "(a ? (b ? c : d) : e)"),
        ("a || b ? c || d : e || f", "((a || b) ? (c || d) : (e || f))"),
        ("(a ? b : c) ? d : e", "((a ? b : c) ? d : e)"),
        ("a || b || c", "(a || b || c)"),
        ("a && b && c", "(a && b && c)"),
        ("a == b != c === d !== e", "((((a == b) != c) === d) !== e)"),
        ("a < b <= c > d >= e", "((((a < b) <= c) > d) >= e)"),
        ("a - b + c", "((a - b) + c)"),
        ("a / b * c % d", "(((a / b) * c) % d)"),
        ("a - -b", "(a - (-b))"),
        ("a--b", "(a - (-b))"),
        ("!!a", "(!(!a))"),
        ("!a.b", "(!a.b)"),
        ("-a.b()", "(-a.b())"),
        ("!a == b", "((!a) == b)"),
        ("a.b.c", "a.b.c"),
        ("a.b(c, d).e(f)[g]", "a.b(c, d).e(f)[g]"),
        ("a['b'].c", "a.b.c"),
        ('a["b"](c)', "a.b(c)"),
        ("a[b]", "a[b]"),
        ("a[('b')]", "a.b"),
        ("a.true", "a.true"),
        ("a.null.false", "a.null.false"),
        ("$a == $a$b", "($a == $a$b)"),
        ("trueish == nullable", "(trueish == nullable)"),
        ("a.f(['b', c])", "a.f(['b', c])"),
        ("a.f([])", "a.f([])"),
        ("(a)", "a"),
        ("((a || b)) && c", "((a || b) && c)"),
        ("1", "1"),
        ("1.0", "1"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1e3", "1000"),
        ("1.5E-1", "0.15"),
        ("0xfF", "255"),
        ("9007199254740993", "9007199254740993"),
        ("true", "True"),
        ("false", "False"),
        ("null", "None"),
        ("'a\"b'", "'a\"b'"),
        ('"a\'b"', '"a\'b"'),
        (r"'\'\"\\\n\t\r\b\f\v\q'", repr("'\"\\\n\t\r\b\f\vq")),
        ("'\\u0041\\x42\\ud83d\\ude00'", "'AB😀'"),
        ("a.f(/x/)", "a.f(regex)"),
        ("a / b / c", "((a / b) / c)"),
        ("a.f(/[/]/) / b", "(a.f(regex) / b)"),
        ("(a) / b.c(/x/i)", "(a / b.c(regex))"),
        ("a ? /x/ : /y/", "(a ? regex : regex)"),
        ("  a\n\t&&\r\nb ", "(a && b)"),
        ("a /* one */ && // two\n b", "(a && b)"),
        ("a;", "a"),
        ("é == ñ", "(é == ñ)"),
    ],
)
def test_an_expression_reads(text: str, meaning: str) -> None:
    assert parsed(text) == meaning


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "Unexpected end of expression."),
        ("  ", 2, "Unexpected end of expression."),
        ("a &&", 4, "Unexpected end of expression."),
        ("a.f(b", 5, "Unexpected end of expression."),
        ("a.f(['b', 'c')", 13, "Unexpected ')'."),
        ("a ? b", 5, "Unexpected end of expression."),
        ("a b", 2, "Unexpected 'b'."),
        ("a)", 1, "Unexpected ')'."),
        ("()", 1, "Unexpected ')'."),
        ("a[]", 2, "Unexpected ']'."),
        ("a.f(b,)", 6, "Unexpected ')'."),
        ("a.1", 2, "Unexpected '1'."),
        ("1a", 1, "Unexpected 'a'."),
        ("010", 1, "Unexpected '10'."),
        ("#", 0, "Unexpected '#'."),
        ("+a", 0, "Unexpected '+'."),
        ("a = b", 2, "Rule expressions may not contain assignments."),
        ("a += b", 3, "Rule expressions may not contain assignments."),
        ("a == (b = c)", 8, "Rule expressions may not contain assignments."),
        ("a; b", 3, "A rule must be a single expression."),
        ("a;;", 2, "A rule must be a single expression."),
        ("var a", 0, "Rule expressions may not contain 'var'."),
        ("typeof a", 0, "Rule expressions may not contain 'typeof'."),
        ("a == typeof b", 5, "Rule expressions may not contain 'typeof'."),
        ("a ** b", 2, "Rule expressions may not contain operator **."),
        ("a & b", 2, "Rule expressions may not contain operator &."),
        ("a | b", 2, "Rule expressions may not contain operator |."),
        ("a &&& b", 4, "Rule expressions may not contain operator &."),
        ("a ^ b", 2, "Rule expressions may not contain operator ^."),
        ("~a", 0, "Rule expressions may not contain operator ~."),
        ("a << b", 3, "Unexpected '<'."),
        ("a, b", 1, "Rule expressions may not contain operator ,."),
        ("a in b", 2, "Rule expressions may not contain operator in."),
        ("/a", 0, "unterminated regular expression literal"),
        ("a.f(/[a/)", 4, "unterminated regular expression literal"),
        ("a.f(/a/g)", 4, "regular expressions do not support flags other than i"),
        ("a.f(/a|/)", 7, "empty alternative in regular expression"),
        ("'a", 0, "The string literal does not end."),
        ("a == \"b'", 5, "The string literal does not end."),
        ("'a\nb'", 0, "The string literal does not end."),
        ("'\\ud83d'", 0, "A string must not hold half a surrogate pair."),
        ("1e999", 0, "The number is out of range."),
        ("{}", 0, "Unexpected '{'."),
        ("`a`", 0, "Unexpected '`'."),
    ],
)
def test_what_is_no_expression_is_refused_where_it_stops(text: str, at: int, why: str) -> None:
    assert complaint(text) == (at, why)


def test_parts_know_where_they_begin() -> None:
    root = parse_expression("  (auth.uid) == $uid[ now ]", LIMITS)
    assert isinstance(root, Binary)
    left, right = root.terms
    assert isinstance(right, Index)
    assert (root.at, left.at, right.at, right.index.at) == (3, 3, 16, 22)


LONG = RulesLimits(expression_bytes=10_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200 + "auth != null" + ")" * 200,
        "!(" * 200 + "auth != null" + ")" * 200 + " || true",
        "!(true && " * 200 + "auth == null" + ")" * 200 + " || true",
        "(true ? " * 200 + "true" + " : false)" * 200,
        "'a'.replace('a', " * 199 + "'a'" + ")" * 199 + " == 'a'",
        "auth[" * 200 + "'a'" + "]" * 200 + " == 'a'",
    ],
)
def test_two_hundred_levels_work(text: str) -> None:
    assert holds(text, auth={"a": "a"}) is True


@pytest.mark.parametrize(
    "text",
    [
        "(" * 8_000 + "a" + ")" * 8_000,
        "(" * 10_000 + "a" + ")" * 10_000,
        "!" * 10_000 + "a",
        "-" * 10_000 + "a",
        "!(" * 10_000 + "a" + ")" * 10_000,
        "a" + ".b" * 10_000,
        "a" + "[0]" * 10_000,
        "a" + "()" * 10_000,
        "a[" * 10_000 + "0" + "]" * 10_000,
        "a(" * 10_000 + ")" * 10_000,
        "[" * 10_000 + "]" * 10_000,
        "(" * 201 + "a" + ")" * 201,
    ],
)
def test_ten_thousand_levels_are_refused(text: str) -> None:
    assert complaint(text, LONG)[1] == "The expression is nested deeper than 200 levels."


@pytest.mark.parametrize("bracket", ["(", "[", "a(", "a[", "a.b(", "!("])
def test_brackets_that_only_open_are_refused(bracket: str) -> None:
    assert complaint(bracket * 10_000, LONG)[1] == "Unexpected end of expression."


@pytest.mark.parametrize(
    ("joint", "term", "end"),
    [
        ("&&", "true", ""),
        ("||", "false", "||true"),
        ("+", "1", "==2000"),
        ("-", "0", "==0"),
        ("*", "1", "==1"),
        ("==", "true", ""),
        ("+", "''", "==''"),
    ],
)
def test_two_thousand_terms_work(joint: str, term: str, end: str) -> None:
    assert holds(joint.join([term] * (1_999 if end[:2] == "||" else 2_000)) + end) is True


def test_two_thousand_choices_work() -> None:
    assert holds("false?false:" * 1_300 + "true") is True


@pytest.mark.parametrize("text", ["&&".join(["a"] * 100_000), "a?b:" * 100_000 + "c"])
def test_a_hundred_thousand_terms_are_refused_quickly(text: str) -> None:
    begin = time.perf_counter()
    assert complaint(text) == (0, "The expression is longer than 16384 bytes.")
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize("text", ["+".join(["1"] * 2_001), "a?b:" * 2_001 + "c"])
def test_more_than_two_thousand_terms_are_refused(text: str) -> None:
    assert complaint(text, LONG)[1] == "More than 2000 terms stand in one chain."


def test_limits_can_be_lowered() -> None:
    tight = RulesLimits(nesting=2, chain_terms=3, regex_size=10, expression_bytes=40)
    assert parse_expression("((a)) && b && c", tight)
    assert complaint("(((a)))", tight)[1] == "The expression is nested deeper than 2 levels."
    assert complaint("a && b && c && d", tight)[1] == "More than 3 terms stand in one chain."
    assert complaint("/[a-z]{9}/", tight)[1] == "the regular expression is too large"
    assert complaint("'" + "é" * 20 + "'", tight)[1] == "The expression is longer than 40 bytes."


def test_limits_cannot_be_raised_beyond_what_the_stack_carries() -> None:
    with pytest.raises(ValueError, match="nesting"):
        RulesLimits(nesting=201)
