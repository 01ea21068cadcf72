"""The grammar: the precedence of the operators, syntax errors and limits."""

from __future__ import annotations

import time

import pytest

from tests.rules.evaluating import LIMITS, evaluate
from treedbd.limits import RulesLimits
from treedbd.loop import finish
from treedbd.rules.document import ExpressionError
from treedbd.rules.grammar import (
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
    parse_expression,
)


def render(node: Expression) -> str:  # noqa: C901, PLR0911 - one case for each form of node
    """Print an expression with all its brackets."""
    match node:
        case Literal(value=value):
            return repr(value)
        case Pattern():
            return "regex"
        case Variable(name=name):
            return name
        case ListLiteral(items=items):
            return f"[{', '.join(map(render, items))}]"
        case Member(target=target, name=name):
            return f"{render(target)}.{name}"
        case Index(target=target, index=index):
            return f"{render(target)}[{render(index)}]"
        case Call(callee=callee, arguments=arguments):
            return f"{render(callee)}({', '.join(map(render, arguments))})"
        case Prefix(operator=operator, operand=operand):
            return f"({operator}{render(operand)})"
        case Logical(operator=operator, terms=terms):
            return f"({f' {operator} '.join(map(render, terms))})"
        case Binary(operators=operators, terms=terms):
            text = render(terms[0])
            for operator, term in zip(operators, terms[1:], strict=True):
                text = f"({text} {operator} {render(term)})"
            return text
        case Conditional(arms=arms, otherwise=otherwise):
            tests = [f"{render(condition)} ? {render(result)} : " for condition, result in arms]
            return f"({''.join(tests)}{render(otherwise)})"


def parsed(text: str) -> str:
    return render(finish(parse_expression(text, LIMITS)))


def syntax_error(text: str, limits: RulesLimits = LIMITS) -> tuple[int, str]:
    with pytest.raises(ExpressionError) as caught:
        finish(parse_expression(text, limits))
    return caught.value.offset, caught.value.text


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
        ("a.f(['b', c,])", "a.f(['b', c])"),
        ("a.f([b || c, // last\n])", "a.f([(b || c)])"),
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
def test_an_expression_parses(text: str, meaning: str) -> None:
    assert parsed(text) == meaning


@pytest.mark.parametrize(
    ("text", "offset", "error"),
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
        ("a.f([,])", 5, "Rule expressions may not contain operator ,."),
        ("a.f(['b',,])", 9, "Rule expressions may not contain operator ,."),
        ("a.f(['b' ||])", 11, "Unexpected ']'."),
        ("a.f([!])", 6, "Unexpected ']'."),
        ("a.f([b, !])", 9, "Unexpected ']'."),
        ("a[b,]", 3, "Rule expressions may not contain operator ,."),
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
        ("'a", 0, "Unterminated string literal."),
        ("a == \"b'", 5, "Unterminated string literal."),
        ("'a\nb'", 0, "Unterminated string literal."),
        ("'\\ud83d'", 0, "A string must not hold half a surrogate pair."),
        ("1e999", 0, "The number is out of range."),
        ("{}", 0, "Unexpected '{'."),
        ("`a`", 0, "Unexpected '`'."),
    ],
)
def test_a_syntax_error_has_its_offset(text: str, offset: int, error: str) -> None:
    assert syntax_error(text) == (offset, error)


def test_nodes_have_their_offsets() -> None:
    root = finish(parse_expression("  (auth.uid) == $uid[ now ]", LIMITS))
    assert isinstance(root, Binary)
    left, right = root.terms
    assert isinstance(right, Index)
    assert (root.offset, left.offset, right.offset, right.index.offset) == (3, 3, 16, 22)


LONG = RulesLimits(expression_bytes=1_048_576)


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
    assert evaluate(text, auth={"a": "a"}) is True


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
    assert syntax_error(text, LONG)[1] == "The expression is nested deeper than 200 levels."


@pytest.mark.parametrize("bracket", ["(", "[", "a(", "a[", "a.b(", "!("])
def test_brackets_that_only_open_are_refused(bracket: str) -> None:
    assert syntax_error(bracket * 10_000, LONG)[1] == "Unexpected end of expression."


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
    assert evaluate(joint.join([term] * (1_999 if end[:2] == "||" else 2_000)) + end) is True


def test_two_thousand_choices_work() -> None:
    assert evaluate("false?false:" * 1_300 + "true") is True


@pytest.mark.parametrize("text", ["&&".join(["a"] * 100_000), "a?b:" * 100_000 + "c"])
def test_a_hundred_thousand_terms_are_refused_quickly(text: str) -> None:
    begin = time.thread_time()
    assert syntax_error(text) == (0, "The expression is longer than 16384 bytes.")
    assert time.thread_time() - begin < 0.5


@pytest.mark.parametrize("text", ["+".join(["1"] * 2_001), "a?b:" * 2_001 + "c"])
def test_more_than_two_thousand_terms_are_refused(text: str) -> None:
    assert syntax_error(text, LONG)[1] == "A chain has more than 2000 terms."


def test_limits_can_be_lowered() -> None:
    tight = RulesLimits(nesting=2, chain_terms=3, regex_size=10, expression_bytes=40)
    assert finish(parse_expression("((a)) && b && c", tight))
    assert syntax_error("(((a)))", tight)[1] == "The expression is nested deeper than 2 levels."
    assert syntax_error("a && b && c && d", tight)[1] == "A chain has more than 3 terms."
    assert syntax_error("/[a-z]{9}/", tight)[1] == "the regular expression is too large"
    assert syntax_error("'" + "é" * 20 + "'", tight)[1] == "The expression is longer than 40 bytes."


def test_nesting_cannot_be_raised_beyond_the_bound_of_the_stack() -> None:
    with pytest.raises(ValueError, match="nesting"):
        RulesLimits(nesting=201)
