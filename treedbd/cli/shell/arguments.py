"""The arguments of a command of the shell: options, paths, and the value of a write.

An option is a word that the command knows. Keys may begin with a hyphen, as those of `push` do, so
any other word with one hyphen is a path. After `--` all words are paths.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import add_query_options, query_parameters
from treedbd.cli.shell.lines import Word, next_word

_END_OF_OPTIONS: Final = "--"


def _query_attributes() -> Namespace:
    parser = ArgumentParser(add_help=False)
    add_query_options(parser)
    return parser.parse_args([])


QUERY_OPTIONS: Final = tuple(f"--{name.replace('_', '-')}" for name in vars(_query_attributes()))


@attrs.frozen
class Shape:
    """Which arguments a command has: options without and with a value, how many words, a value."""

    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    least: int = 0
    most: int = 1
    has_value: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All options."""
        return self.flags + self.options


@attrs.frozen
class Given:
    """The arguments that were given."""

    words: list[str]
    flags: frozenset[str]
    options: dict[str, str]
    value: str = ""

    def path(self) -> str:
        """Return the first word, or the present place."""
        return self.words[0] if self.words else "."

    def query(self) -> dict[str, str]:
        """Return the parameters of the query."""
        attributes = _query_attributes()
        for name, value in self.options.items():
            if name in QUERY_OPTIONS:
                setattr(attributes, name[2:].replace("-", "_"), value)
        return query_parameters(attributes)

    def number(self, name: str, default: int, most: int) -> int:
        """Return the number of an option; raise `CommandFailed`."""
        text = self.options.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:16]) <= most):
            raise CommandFailed(f"{name} must be a number from 1 to {most:,}.")
        return int(text)


def parse_arguments(shape: Shape, text: str, usage: str) -> Given:
    """Parse what follows the name of a command; raise `CommandFailed`."""
    words: list[str] = []
    flags: set[str] = set()
    options: dict[str, str] = {}
    has_ended, at = False, 0
    while not (shape.has_value and len(words) == shape.most):
        word = _next(text, at)
        if word is None:
            break
        at = word.end
        name, equals, given = word.text.partition("=")
        if has_ended or not word.text.startswith("-"):
            words.append(word.text)
        elif word.text == _END_OF_OPTIONS:
            has_ended = True
        elif word.text in shape.flags:
            flags.add(word.text)
        elif name in shape.options:
            following = None if equals else _next(text, at)
            if not equals and following is None:
                raise CommandFailed(f"{name} needs a value: {usage}.")
            options[name] = given if following is None else following.text
            at = at if following is None else following.end
        elif name.startswith("--"):
            raise CommandFailed(f"There is no option {name}: {usage}.")
        else:
            words.append(word.text)
    if not shape.least <= len(words) <= shape.most:
        raise CommandFailed(f"The command is written {usage}.")
    return Given(words, frozenset(flags), options, text[at:].strip())


def _next(text: str, position: int) -> Word | None:
    word = next_word(text, position)
    if word is not None and not word.is_closed:
        raise CommandFailed("A quotation mark is not closed.")
    return word
