r"""Regular expressions: the language's own subset, matched in linear time.

The subset has literal characters; `.`, which is any character but a line feed; classes `[a-z]` and
`[^…]`; `\s \w \d` and their negations, for ASCII only; groups; `|`; `* + ?` and `{n}`, `{n,}`,
`{n,m}`, each with an optional `?` that has no effect, because only the existence of a match
matters. A backslash makes any other character literal. `^` and `$` are allowed at the beginning and
at the end of the pattern and apply to the whole of it, so `^a|b$` matches `a` and `b` and no other
text. An alternative must not be empty, and groups have no other form. The only flag, `i`,
folds case as Unicode does for single characters.

Theory of operation: one pass from left to right with a stack of open groups, without recursion.
Each construct is at once rendered for RE2, with every literal character escaped by its number, so
the accepted language and its meaning do not depend on that library. The pass also adds up an upper
bound of the instructions that RE2 needs; counted repetition multiplies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Final, NoReturn

import attrs
import re2

from treedbd.limits import MIB
from treedbd.rules.document import ExpressionError

MAX_GROUPS: Final = 200
MAX_REPEAT: Final = 1_000
"""The most that RE2 supports, also for the product of nested repetitions."""

# RE2 needs a nanosecond for a character, and for some patterns and texts about one for each
# instruction.
_SIZE_PER_WEIGHT: Final = 32
_ENCODED: Final = 8
"""Nanoseconds that it takes, at the worst, to encode a character and to read it."""

_SETS: Final = {"s": r"\t-\r ", "w": r"\w", "d": "0-9"}
_SET_COST: Final = 8
_NEGATED_SETS: Final = {
    "S": r"\x{0}-\x{8}\x{E}-\x{1F}!-\x{10FFFF}",
    "W": r"\W",
    "D": r"\x{0}-/:-\x{10FFFF}",
}
_NEGATED_SET_COST: Final = 24
_COUNT = re.compile(r"\{([0-9]{1,9})(?:(,)([0-9]{1,9})?)?\}")
_UNTERMINATED: Final = "unterminated regular expression literal"
_ANCHORS: Final = {"^": "beginning", "$": "end"}


@attrs.frozen(eq=False)
class Regex:
    """A compiled regular expression."""

    search: Callable[[bytes], object]
    """Takes UTF-8; returns None if the expression matches nowhere in it."""
    weight: int
    """How many characters a character of the text counts for: large expressions may be slower."""
    worst_weight: int
    """The same if it is to be as many as the slowest text takes nanoseconds."""
    rendered: str
    """The pattern for RE2."""
    flags: str
    bar: int | None = None
    """The index of the first bar outside groups, if the pattern has `^` or `$`."""

    @cached_property
    def search_beside(self) -> Callable[[bytes], object]:
        """A `search` for another thread, which may use more memory.

        It shares nothing with the first, which would wait: RE2 locks what it keeps of a pattern.
        """
        return _compile(self.rendered, self.flags, 8 * MIB)


def parse_regex(pattern: str, flags: str, offset: int, max_size: int) -> Regex:
    """Compile the pattern between two slashes, the first of which is at `offset`.

    `max_size` bounds the instructions. Raises `ExpressionError`.
    """
    if flags not in ("", "i"):
        raise ExpressionError(offset, "regular expressions do not support flags other than i")
    parser = _RegexParser(pattern, offset + 1, max_size, 3 if flags else 1)
    whole = parser.parse()
    try:
        search = _compile(whole.rendered, flags)
    except re2.error:
        raise ExpressionError(offset, "the regular expression is too large") from None
    weight, worst_weight = 1 + whole.size // _SIZE_PER_WEIGHT, _ENCODED + whole.size
    return Regex(
        search=search,
        weight=weight,
        worst_weight=worst_weight,
        rendered=whole.rendered,
        flags=flags,
        bar=parser.bar,
    )


def _compile(rendered: str, flags: str, memory: int = MIB) -> Callable[[bytes], object]:
    """Return `search` of a pattern for RE2: of another object if it may use more memory.

    Of what a text leads to it keeps states, each of which takes microseconds to make, until they
    fill that many bytes twice; then it works without them.
    """
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = not flags
    options.max_mem = memory
    search: Callable[[bytes], object] = re2.compile(rendered, options).search
    return search


@attrs.define
class _Fragment:
    """A rendered atom, sequence or alternative, and its instructions."""

    rendered: str
    size: int
    repeats: int = 1
    """The greatest product of nested counted repetitions."""


@attrs.define
class _Group:
    """An open group, or the whole pattern: its complete alternatives, and the current one."""

    at: int
    alternatives: list[_Fragment] = attrs.field(factory=list)
    fragments: list[_Fragment] = attrs.field(factory=list)


class _RegexParser:
    """One pass over one pattern; `weight` is the cost of a character, greater if case is folded."""

    def __init__(self, pattern: str, offset: int, max_size: int, weight: int) -> None:
        self.pattern = pattern
        self.offset = offset
        self.max_size = max_size
        self.weight = weight
        self.at = 0
        self.groups = [_Group(0)]
        self.is_anchored = False
        self.bar: int | None = None

    def fail(self, text: str, at: int | None = None) -> NoReturn:
        raise ExpressionError(self.offset + (self.at if at is None else at), text)

    def parse(self) -> _Fragment:
        pattern = self.pattern
        begin = r"\A" if pattern.startswith("^") else ""
        end = r"\z" if pattern.endswith("$") and not _is_escaped(pattern) else ""
        self.is_anchored = bool(begin or end)
        self.at = len(begin) // 2
        stop = len(pattern) - len(end) // 2
        if self.at >= stop:
            return _Fragment(begin + end, 0)
        while self.at < stop:
            self.step(stop)
        if len(self.groups) > 1:
            self.fail("unterminated group in regular expression", self.groups[-1].at)
        whole = self.close_group()
        whole.rendered = f"{begin}(?:{whole.rendered}){end}"
        return whole

    def step(self, stop: int) -> None:
        """Parse the construct that begins at the cursor."""
        letter = self.pattern[self.at]
        if letter in "*+?{":
            self.repeat(stop)
        elif letter == "(":
            if self.pattern.startswith("(?", self.at):
                self.fail("regular expressions do not support groups that begin with (?")
            if len(self.groups) > MAX_GROUPS:
                self.fail("the regular expression is nested too deeply")
            self.groups.append(_Group(self.at))
            self.at += 1
        elif letter == ")":
            if len(self.groups) == 1:
                self.fail("unmatched ) in regular expression")
            fragment = self.close_group()
            fragment.rendered = f"(?:{fragment.rendered})"
            self.add(fragment, 1)
        elif letter == "|":
            if self.is_anchored and self.bar is None and len(self.groups) == 1:
                self.bar = self.at
            self.close_alternative()
            self.at += 1
        elif letter in "^$":
            self.fail(f"{letter} is only allowed at the {_ANCHORS[letter]} of a regular expression")
        else:
            self.atom(letter, stop)

    def atom(self, letter: str, stop: int) -> None:
        if letter == "[":
            self.add_class(stop)
        elif letter == ".":
            self.add(_Fragment(r"[^\n]", _NEGATED_SET_COST // 2), 1)
        elif letter == "\\":
            self.add_escaped(self.pattern[self.at + 1 : self.at + 2])
        else:
            self.add(_Fragment(_escape(letter), self.weight * len(letter.encode())), 1)

    def add(self, fragment: _Fragment, length: int) -> None:
        if fragment.size > self.max_size:
            self.fail("the regular expression is too large")
        self.groups[-1].fragments.append(fragment)
        self.at += length

    def add_escaped(self, letter: str) -> None:
        if letter in _SETS:
            self.add(_Fragment(f"[{_SETS[letter]}]", _SET_COST * self.weight), 2)
        elif letter in _NEGATED_SETS:
            self.add(_Fragment(f"[{_NEGATED_SETS[letter]}]", _NEGATED_SET_COST * self.weight), 2)
        elif letter:
            self.add(_Fragment(_escape(letter), self.weight * len(letter.encode())), 2)
        else:
            self.fail(_UNTERMINATED)

    def close_alternative(self) -> None:
        """Join the fragments of the current alternative."""
        group = self.groups[-1]
        if not group.fragments:
            self.fail("empty alternative in regular expression")
        joined = _Fragment(
            "".join(fragment.rendered for fragment in group.fragments),
            sum(fragment.size for fragment in group.fragments),
            max(fragment.repeats for fragment in group.fragments),
        )
        group.alternatives.append(joined)
        group.fragments = []

    def close_group(self) -> _Fragment:
        """Close the innermost group and return its fragment, not yet in brackets."""
        self.close_alternative()
        alternatives = self.groups.pop().alternatives
        whole = _Fragment(
            "|".join(fragment.rendered for fragment in alternatives),
            sum(fragment.size + 1 for fragment in alternatives),
            max(fragment.repeats for fragment in alternatives),
        )
        if whole.size > self.max_size:
            self.fail("the regular expression is too large")
        return whole

    def repeat(self, stop: int) -> None:
        fragments = self.groups[-1].fragments
        if not fragments:
            self.fail("nothing to repeat in regular expression")
        fragment = fragments.pop()
        letter = self.pattern[self.at]
        if letter == "{":
            fragment = self.repeat_counted(fragment)
        else:
            fragment = _Fragment(
                f"{fragment.rendered}{letter}", fragment.size + 1, fragment.repeats
            )
            self.at += 1
        if self.at < stop and self.pattern[self.at] == "?":
            self.at += 1
        if self.at < stop and self.pattern[self.at] in "*+?{":
            self.fail("nothing to repeat in regular expression")
        self.add(fragment, 0)

    def repeat_counted(self, fragment: _Fragment) -> _Fragment:
        found = _COUNT.match(self.pattern, self.at)
        if not found:
            self.fail("{ must be escaped, or begin a count, in a regular expression")
        low, high = int(found[1]), int(found[3] or found[1])
        repeats = fragment.repeats * max(low, high, 1)
        if low > high or repeats > MAX_REPEAT:
            self.fail("the count in the regular expression is out of range")
        self.at = found.end()
        size = (fragment.size + 1) * (max(low, high) + bool(found[2]))
        return _Fragment(f"{fragment.rendered}{found[0]}", size, repeats)

    def add_class(self, stop: int) -> None:
        begin = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at, stop)
        self.at += negated
        rendered, size = "", 0
        while self.at < stop and self.pattern[self.at] != "]":
            member, cost = self.class_member(stop)
            rendered += member
            size += cost * self.weight
        if self.at >= stop:
            self.fail(_UNTERMINATED, begin)
        if not rendered:
            self.fail("empty class in regular expression", begin)
        size += _NEGATED_SET_COST * self.weight if negated else 0
        self.add(_Fragment(f"[{'^' if negated else ''}{rendered}]", size), 1)

    def class_member(self, stop: int) -> tuple[str, int]:
        """Parse one character, range or set of a class; return its rendering and its cost."""
        letter = self.class_letter()
        if len(letter) > 1:
            return letter, _NEGATED_SET_COST
        following = self.pattern[self.at + 1 : self.at + 2]
        if self.pattern[self.at : self.at + 1] != "-" or following in ("]", ""):
            return _escape(letter), 4
        dash = self.at
        self.at += 1
        last = self.class_letter()
        if len(last) > 1:
            self.at = dash
            return _escape(letter), 4
        if last < letter:
            self.fail("a range in the regular expression is out of order", dash)
        return f"{_escape(letter)}-{_escape(last)}", 12

    def class_letter(self) -> str:
        """Return one character of a class, or a set, already rendered."""
        letter = self.pattern[self.at]
        self.at += 1
        if letter != "\\":
            return letter
        letter = self.pattern[self.at : self.at + 1]
        if not letter:
            self.fail(_UNTERMINATED)
        self.at += 1
        return _SETS.get(letter) or _NEGATED_SETS.get(letter) or letter


def _is_escaped(pattern: str) -> bool:
    """Return whether the last character follows a backslash that is not itself escaped."""
    body = pattern[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _escape(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else rf"\x{{{ord(letter):X}}}"
