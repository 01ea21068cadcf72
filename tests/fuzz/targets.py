"""The targets, by name. Each is a function of bytes that raises only if it has found something."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.fuzz import bodies, entries, heads, queries, rows, rules, tokens

CORPUS: Final = pathlib.Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """What is called with inputs, and what the syntax of these is made of."""

    check: Callable[[bytes], None]
    tokens: Sequence[bytes]


TARGETS: Final = {
    module.__name__.rpartition(".")[2]: Target(module.check, module.TOKENS)
    for module in (bodies, entries, heads, queries, rows, rules, tokens)
}


def read_corpus(name: str) -> list[bytes]:
    """Return the inputs of a target that are kept, in the order of their names."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
