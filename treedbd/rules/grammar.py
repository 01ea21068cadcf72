"""The grammar of expressions, and the parser that builds their syntax tree.

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

`tokens` has the tokens. Words that are not in the grammar (`typeof`, `in`, `var`, …), assignments,
the comma elsewhere and the bitwise operators are errors, which `syntax_errors` words. Whitespace
and comments are allowed between any two tokens.

Theory of operation: operator precedence with a stack of the constructs that are still open, so
nothing here recurses, however deep the text is nested. An operator closes the constructs that bind
tighter; one of the same level continues its chain. `value` is the operand that was read last, and
what follows it decides whose operand it is. The measures of a node, which the limits are about, are
kept beside it only until the construct around it is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from treedbd.limits import RulesLimits
from treedbd.loop import Steps
from treedbd.rules.ast import Expression, Literal, Member, Pattern, Variable
from treedbd.rules.constructs import (
    CHOICE,
    FORMS_CLOSED_BY,
    LEVELS,
    OPEN,
    PREFIX,
    Construct,
    Form,
    form_of,
)
from treedbd.rules.errors import ExpressionError
from treedbd.rules.regex import parse_regex
from treedbd.rules.remedies import JOIN_RULES
from treedbd.rules.syntax_errors import syntax_error
from treedbd.rules.tokens import (
    BLANKS,
    NAME,
    OPERAND,
    OPERATOR,
    is_constant,
    read_constant,
    read_number,
    read_string,
)

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
        self.constructs = [Construct(Form.WHOLE, OPEN, 0)]
        self.value: Expression = Literal(0, None)
        self.depth = 0
        self.brackets = 0

    def parse(self) -> Steps[Expression]:
        while True:
            for _ in range(_TOKENS_PER_STEP):
                found = (OPERAND if self.expects_operand else OPERATOR).match(self.text, self.at)
                if found is None or found.lastgroup is None:
                    self.fail()
                begin, end = found.span(found.lastgroup)
                _METHODS[found.lastgroup](self, self.text[begin:end], begin)
                self.at = max(self.at, end)
                if self.is_complete:
                    return self.value
            yield

    def fail(self) -> NoReturn:
        raise syntax_error(self.text, self.at, operand=self.expects_operand)

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
        if is_constant(name):
            self.set_operand(Literal(offset, read_constant(name)))
        else:
            self.set_operand(Variable(offset, name))

    def number(self, literal: str, offset: int) -> None:
        self.set_operand(Literal(offset, read_number(literal, offset)))

    def string(self, literal: str, offset: int) -> None:
        self.set_operand(Literal(offset, read_string(literal, offset)))

    def pattern(self, literal: str, offset: int) -> None:
        pattern, _, flags = literal[1:].rpartition("/")
        regex = parse_regex(pattern, flags, offset, self.limits.regex_size)
        self.set_operand(Pattern(offset, regex))

    # Constructs.

    def open(self, form: Form, level: int, offset: int) -> Construct:
        """Begin a construct; an operand comes next."""
        construct = Construct(form, level, offset)
        self.constructs.append(construct)
        self.expects_operand = True
        return construct

    def add_operand(self, construct: Construct) -> None:
        """Give the operand that was read last to a construct; another one comes next."""
        construct.operands.append(self.value)
        construct.depth = max(construct.depth, self.depth)
        construct.brackets = max(construct.brackets, self.brackets)
        self.expects_operand = True

    def close(self) -> None:
        """Make the innermost construct the operand that was read last."""
        construct = self.constructs.pop()
        has_brackets = construct.level == OPEN
        # A group has no node, so only its brackets count.
        depth = construct.depth + (construct.form is not Form.GROUP)
        self.set_operand(construct.node(), depth, construct.brackets + has_brackets)

    def close_tighter(self, level: int) -> Construct:
        """Close the constructs that bind tighter than a level; return the one around them."""
        construct = self.constructs[-1]
        while construct.level > level:
            self.add_operand(construct)
            self.close()
            construct = self.constructs[-1]
        return construct

    def check_length(self, construct: Construct, terms: int) -> None:
        limit = self.limits.chain_terms
        if terms > limit:
            raise ExpressionError(construct.offset, f"A chain has more than {limit} terms.")

    # Operators and brackets.

    def prefix(self, operator: str, offset: int) -> None:
        self.open(Form.PREFIX, PREFIX, offset).operators.append(operator)

    def operator(self, operator: str, _: int) -> None:
        level = LEVELS[operator]
        construct = self.close_tighter(level)
        if construct.level != level:
            construct = self.open(form_of(operator), level, self.value.offset)
        self.add_operand(construct)
        construct.operators.append(operator)
        self.check_length(construct, len(construct.operators) + 1)

    def choice(self, _: str, __: int) -> None:
        construct = self.close_tighter(CHOICE)
        if construct.level != CHOICE:
            construct = self.open(Form.CONDITIONAL, CHOICE, self.value.offset)
        self.add_operand(construct)
        # What follows may be any expression, up to the colon.
        construct.level = OPEN
        self.check_length(construct, len(construct.operands) // 2 + 1)

    def otherwise(self, _: str, __: int) -> None:
        construct = self.close_tighter(OPEN)
        if construct.form is not Form.CONDITIONAL:
            self.fail()
        self.add_operand(construct)
        construct.level = CHOICE

    def opening(self, bracket: str, offset: int) -> None:
        if self.expects_operand:
            self.open(Form.GROUP if bracket == "(" else Form.LIST, OPEN, offset)
        else:
            construct = self.open(Form.CALL if bracket == "(" else Form.INDEX, OPEN, offset)
            self.add_operand(construct)

    def closing(self, bracket: str, _: int) -> None:
        if not self.expects_operand:
            construct = self.close_tighter(OPEN)
            self.add_operand(construct)
            is_complete = True
        else:
            construct = self.constructs[-1]
            # A list may be empty, or end in a comma; a call has no operand then but its callee.
            is_complete = construct.form is Form.LIST or (
                construct.form is Form.CALL and len(construct.operands) == 1
            )
        if construct.form not in FORMS_CLOSED_BY[bracket] or not is_complete:
            self.fail()
        self.close()

    def comma(self, _: str, __: int) -> None:
        construct = self.close_tighter(OPEN)
        if construct.form not in (Form.LIST, Form.CALL):
            self.fail()
        self.add_operand(construct)

    def member(self, _: str, offset: int) -> None:
        self.at = offset + 1
        name = NAME.match(self.text, self.at)
        if name is None:
            self.fail()
        self.at = name.end()
        value = Member(self.value.offset, self.value, name[1], name.start(1))
        self.set_operand(value, self.depth + 1, self.brackets)

    def end(self, semicolon: str, offset: int) -> None:
        if self.close_tighter(OPEN).form is not Form.WHOLE:
            self.fail()
        rest = BLANKS.match(self.text, offset + len(semicolon))
        if rest is not None and rest.end() < len(self.text):
            text = "A rule must be a single expression."
            raise ExpressionError(rest.end(), text, JOIN_RULES)
        self.is_complete = True


_METHODS: Final[dict[str, Callable[[_ExpressionParser, str, int], None]]] = {
    form: getattr(_ExpressionParser, form) for form in (*OPERAND.groupindex, *OPERATOR.groupindex)
}
"""The method for each form of token: it is given the token and its offset."""
