"""The words of the product and of its pages: plain ones, each with one meaning (CONTRIBUTING.md).

`FORBIDDEN` are words that make a sentence hard to read for a newcomer, or that have another meaning
in this project. Docstrings, comments and strings of Python are searched for them, and the pages,
where code and quoted output do not count.
"""

from __future__ import annotations

import io
import pathlib
import re
import tokenize
from collections.abc import Iterator
from typing import Final

import pytest

PROJECT: Final = pathlib.Path(__file__).parent.parent

FORBIDDEN: Final = re.compile(
    r"""
      \b(?-i:Let)\ (?!me\b)[a-z]+                            # the verb that is meant
    | (?<!there\ )\b(?:is|are|was|were)\ no\b(?!\s+longer)   # is not a; has no
    | \b(?:no|any|some)body\b | \bwho(?:m)?ever\b            # no client; a client that …
    | \bno\ more\b                                           # no longer; at most
    | \b(?:told|tells?|hears?|heard)\b                       # is notified; receives
    | \banew\b                                               # again
    | \bsettle[sd]?\b                                        # decides; ends
    | \bstands?\b(?!-)                                       # is; is stored in
    | \blies?\b                                              # is in
    | \bthe\ very\b                                          # the same
    | \bwhereabouts\b
    | \bbehind\b                                             # after
    | \b(?:its|their|whose|own)\ turns?\b | \bin\ turn\b     # in a queue; one after the other
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Beside each word what to write instead; a turn is one of the reactor."""

ALLOWED: Final = re.compile(
    r"""
      \bbehind\ (?:a|the|one|nginx|other)\b    # a proxy, a load balancer
    | \bf[ae]lls?\ behind\b | \*behind\*       # of a window: it has writes to catch up with
    | \bStand\ in\ for\b                       # of a test double
    | \bno\ more\ can\ be\ created\b           # of databases: a message
    """,
    re.VERBOSE | re.IGNORECASE,
)

PAGES: Final = sorted(
    [*(PROJECT / "docs").glob("*.md"), *PROJECT.glob("*.md"), *(PROJECT / "docs/rules").iterdir()]
)
SAMPLES: Final = [file for file in sorted((PROJECT / "conf").iterdir()) if file.suffix != ".json"]
CONSOLE: Final = [
    file
    for file in sorted((PROJECT / "treedbd" / "console").rglob("*"))
    if file.suffix in (".js", ".html", ".css") and file.parent.name != "vendor"
]
_FUNCTION: Final = re.compile(r"^import .*$|\b\w+(?=\()", re.MULTILINE)
_CODE: Final = re.compile(r"^( *)```.*?^\1```$|^(?: {4}|\t).*$|`[^`]+`", re.DOTALL | re.MULTILINE)


def blank(text: re.Match[str]) -> str:
    """Return as many lines as a match has, without their words."""
    return re.sub(r"[^\n]", " ", text.group())


def find_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the forbidden words of a text, each with its line, from 1."""
    text = ALLOWED.sub(blank, text)
    for found in FORBIDDEN.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found.group()


def find_in_python(file: pathlib.Path) -> Iterator[str]:
    """Yield the forbidden words in the docstrings, comments and strings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]:
            for line, word in find_words(token.string):
                yield f"{file.relative_to(PROJECT)}:{token.start[0] + line - 1}: {word}"


def find_in_console(file: pathlib.Path) -> Iterator[str]:
    """Yield the forbidden words of a file of the console; names of functions do not count."""
    for line, word in find_words(_FUNCTION.sub(blank, file.read_text())):
        yield f"{file.relative_to(PROJECT)}:{line}: {word}"


def words_below(folder: str) -> list[str]:
    return [
        where for file in sorted((PROJECT / folder).rglob("*.py")) for where in find_in_python(file)
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "Let the connection be closed.",
        "It is no JSON.",
        "Nobody else writes.",
        "There are no more streams.",
        "A watcher is told of it.",
        "The rows behind it",
        "Writes wait for their turn.",
    ],
)
def test_a_sentence_with_a_forbidden_word_is_found(sentence: str) -> None:
    assert [line for line, _ in find_words(f"\n{sentence}\n")] == [2]


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no index, and the token is no longer valid.",
        "Let's Encrypt",
        "Clients behind a proxy have one address.",
        "A turn of the reactor lasts some milliseconds.",
    ],
)
def test_a_plain_sentence_is_allowed(sentence: str) -> None:
    assert not list(find_words(sentence))


def test_the_package_has_plain_words() -> None:
    assert not words_below("treedbd")


def test_the_console_has_plain_words() -> None:
    assert CONSOLE
    assert not [where for file in CONSOLE for where in find_in_console(file)]


def test_measurements_and_examples_have_plain_words() -> None:
    assert not [*words_below("bench"), *words_below("docs")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_plain_words(page: pathlib.Path) -> None:
    text = page.read_text()
    assert not list(find_words(_CODE.sub(blank, text) if page.suffix == ".md" else text))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_has_plain_words(sample: pathlib.Path) -> None:
    assert not list(find_words(sample.read_text()))
