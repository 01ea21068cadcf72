"""How large rules may be, and how much work: each bound a number that the operator can change.

Bounds on depth have a ceiling: expressions are evaluated by functions that call each other, and
the interpreter's stack carries no more.
"""

from __future__ import annotations

import attrs
from attrs import validators

MAX_NESTING = 200
JUDGED_CHARACTERS = 64 * 1_048_576


@attrs.frozen
class RulesLimits:
    """Bounds on one rules document, and on one request that it judges."""

    document_bytes: int = attrs.field(default=1_048_576, validator=validators.ge(1))
    node_depth: int = attrs.field(default=32, validator=[validators.ge(1), validators.le(32)])
    """Keys on the longest path of the document; no data lies deeper."""
    expression_bytes: int = attrs.field(default=16_384, validator=validators.ge(1))
    nesting: int = attrs.field(
        default=MAX_NESTING, validator=[validators.ge(1), validators.le(MAX_NESTING)]
    )
    """Levels of brackets, prefixes, members and calls around the innermost operand."""
    chain_terms: int = attrs.field(default=2_000, validator=validators.ge(2))
    """Operands that operators of one level join."""
    regex_size: int = attrs.field(
        default=10_000, validator=[validators.ge(1), validators.le(20_000)]
    )
    """Instructions of one compiled regular expression, by the estimate of `regex`."""
    judged_characters: int = attrs.field(default=JUDGED_CHARACTERS, validator=validators.ge(1))
    """Characters that string methods and regular expressions go through for one request."""
