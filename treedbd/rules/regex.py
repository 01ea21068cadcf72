r"""Regular expressions: the language's own subset, matched in linear time.

What is accepted: literal characters; `.`, any character but
a line feed; classes `[a-z]`, `[^…]`; `\s \w \d` and their opposites, which know ASCII only;
groups; `|`; `* + ?` and `{n}`, `{n,}`, `{n,m}`, with a `?` behind that changes nothing, for a
match is only found or not. A backslash before anything else makes it literal. `^` and `$` stand at
the very beginning and end and hold for the whole pattern, so `^a|b$` is either letter and nothing
else. No alternative may be empty, and there are no other kinds of groups. The one flag, `i`, folds
case as Unicode does for single characters.

Theory of operation: one pass from left to right with a stack of open groups, so that depth costs
nothing. Each part is at once rendered for RE2, every literal character escaped by its number, so
that what is accepted, and what it means, does not depend on that library. Beside the rendering the
pass adds up how many instructions RE2 will need, at most; counted repetition multiplies them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

import attrs
import re2

from treedbd.rules.refusal import Fault

MAX_GROUPS: Final = 200
MAX_REPEAT: Final = 1_000
"""RE2 takes no more, also not as a product of repetitions in each other."""

_WEIGHED_SIZE: Final = 128
"""RE2 takes a nanosecond for a character, but a multiple of the size where a text drives it through
ever new states."""

_SETS: Final = {"s": r"\t-\r ", "w": r"\w", "d": "0-9"}
_SET_COST: Final = 8
_OPPOSITES: Final = {
    "S": r"\x{0}-\x{8}\x{E}-\x{1F}!-\x{10FFFF}",
    "W": r"\W",
    "D": r"\x{0}-/:-\x{10FFFF}",
}
_OPPOSITE_COST: Final = 24
_COUNT = re.compile(r"\{([0-9]{1,9})(?:(,)([0-9]{1,9})?)?\}")
_UNTERMINATED: Final = "unterminated regular expression literal"
_ENDS: Final = {"^": "beginning", "$": "end"}


@attrs.frozen(eq=False)
class Regex:
    """A compiled regular expression."""

    search: Callable[[bytes], object]
    """Given UTF-8, returns something where it matches anywhere, else None."""
    weight: int
    """For how many characters each one of a text counts: large patterns may take longer."""


def parse_regex(pattern: str, flags: str, at: int, max_size: int) -> Regex:
    """Compile the pattern that stands between two slashes, the first of them at offset `at`.

    Raises `Fault`.
    """
    if flags not in ("", "i"):
        raise Fault(at, "regular expressions do not support flags other than i")
    whole = _Parser(pattern, at + 1, max_size, 3 if flags else 1).parse()
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = not flags
    try:
        search = re2.compile(whole.rendered, options).search
    except re2.error:
        raise Fault(at, "the regular expression is too large") from None
    return Regex(search, 1 + whole.size // _WEIGHED_SIZE)


@attrs.define
class _Part:
    """Something rendered: an atom, a sequence, an alternative."""

    rendered: str
    size: int
    repeats: int = 1
    """The product of the counted repetitions in each other, where it is greatest."""


@attrs.define
class _Group:
    """An open group, or the whole pattern: the alternatives before, and the parts of this one."""

    at: int
    alternatives: list[_Part] = attrs.field(factory=list)
    parts: list[_Part] = attrs.field(factory=list)


class _Parser:
    """One pass over one pattern."""

    def __init__(self, pattern: str, offset: int, max_size: int, weight: int) -> None:
        self.pattern = pattern
        self.offset = offset
        self.max_size = max_size
        self.weight = weight
        self.at = 0
        self.groups = [_Group(0)]

    def refuse(self, text: str, at: int | None = None) -> NoReturn:
        raise Fault(self.offset + (self.at if at is None else at), text)

    def parse(self) -> _Part:
        pattern = self.pattern
        begin = r"\A" if pattern.startswith("^") else ""
        end = r"\z" if pattern.endswith("$") and not _is_escaped(pattern) else ""
        self.at = len(begin) // 2
        stop = len(pattern) - len(end) // 2
        if self.at >= stop:
            return _Part(begin + end, 0)
        while self.at < stop:
            self.step(stop)
        if len(self.groups) > 1:
            self.refuse("unterminated group in regular expression", self.groups[-1].at)
        whole = self.close_group()
        whole.rendered = f"{begin}(?:{whole.rendered}){end}"
        return whole

    def step(self, stop: int) -> None:
        """Read one construct that begins at the cursor."""
        letter = self.pattern[self.at]
        if letter in "*+?{":
            self.repeat(stop)
        elif letter == "(":
            if self.pattern.startswith("(?", self.at):
                self.refuse("regular expressions know no groups that begin with (?")
            if len(self.groups) > MAX_GROUPS:
                self.refuse("the regular expression is nested too deeply")
            self.groups.append(_Group(self.at))
            self.at += 1
        elif letter == ")":
            if len(self.groups) == 1:
                self.refuse("unmatched ) in regular expression")
            part = self.close_group()
            part.rendered = f"(?:{part.rendered})"
            self.add(part, 1)
        elif letter == "|":
            self.close_alternative()
            self.at += 1
        elif letter in "^$":
            self.refuse(f"{letter} may only stand at the {_ENDS[letter]} of a regular expression")
        else:
            self.atom(letter, stop)

    def atom(self, letter: str, stop: int) -> None:
        if letter == "[":
            self.add_class(stop)
        elif letter == ".":
            self.add(_Part(r"[^\n]", _OPPOSITE_COST // 2), 1)
        elif letter == "\\":
            self.add_escaped(self.pattern[self.at + 1 : self.at + 2])
        else:
            self.add(_Part(_escape(letter), self.weight * len(letter.encode())), 1)

    def add(self, part: _Part, length: int) -> None:
        if part.size > self.max_size:
            self.refuse("the regular expression is too large")
        self.groups[-1].parts.append(part)
        self.at += length

    def add_escaped(self, letter: str) -> None:
        if letter in _SETS:
            self.add(_Part(f"[{_SETS[letter]}]", _SET_COST * self.weight), 2)
        elif letter in _OPPOSITES:
            self.add(_Part(f"[{_OPPOSITES[letter]}]", _OPPOSITE_COST * self.weight), 2)
        elif letter:
            self.add(_Part(_escape(letter), self.weight * len(letter.encode())), 2)
        else:
            self.refuse(_UNTERMINATED)

    def close_alternative(self) -> None:
        group = self.groups[-1]
        if not group.parts:
            self.refuse("empty alternative in regular expression")
        joined = _Part(
            "".join(part.rendered for part in group.parts),
            sum(part.size for part in group.parts),
            max(part.repeats for part in group.parts),
        )
        group.alternatives.append(joined)
        group.parts = []

    def close_group(self) -> _Part:
        self.close_alternative()
        found = self.groups.pop().alternatives
        whole = _Part(
            "|".join(part.rendered for part in found),
            sum(part.size + 1 for part in found),
            max(part.repeats for part in found),
        )
        if whole.size > self.max_size:
            self.refuse("the regular expression is too large")
        return whole

    def repeat(self, stop: int) -> None:
        parts = self.groups[-1].parts
        if not parts:
            self.refuse("nothing to repeat in regular expression")
        part = parts.pop()
        letter = self.pattern[self.at]
        if letter == "{":
            part = self.count(part)
        else:
            part = _Part(f"{part.rendered}{letter}", part.size + 1, part.repeats)
            self.at += 1
        if self.at < stop and self.pattern[self.at] == "?":
            self.at += 1
        if self.at < stop and self.pattern[self.at] in "*+?{":
            self.refuse("nothing to repeat in regular expression")
        self.add(part, 0)

    def count(self, part: _Part) -> _Part:
        found = _COUNT.match(self.pattern, self.at)
        if not found:
            self.refuse("{ must be escaped, or begin a count, in a regular expression")
        low, high = int(found[1]), int(found[3] or found[1])
        repeats = part.repeats * max(low, high, 1)
        if low > high or repeats > MAX_REPEAT:
            self.refuse("the count in the regular expression is out of range")
        self.at = found.end()
        size = (part.size + 1) * (max(low, high) + bool(found[2]))
        return _Part(f"{part.rendered}{found[0]}", size, repeats)

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
            self.refuse(_UNTERMINATED, begin)
        if not rendered:
            self.refuse("empty class in regular expression", begin)
        size += _OPPOSITE_COST * self.weight if negated else 0
        self.add(_Part(f"[{'^' if negated else ''}{rendered}]", size), 1)

    def class_member(self, stop: int) -> tuple[str, int]:
        """Read one character, range or set of a class; return its rendering and its cost."""
        letter = self.class_letter()
        if len(letter) > 1:
            return letter, _OPPOSITE_COST
        following = self.pattern[self.at + 1 : self.at + 2]
        if self.pattern[self.at : self.at + 1] != "-" or following in ("]", ""):
            return _escape(letter), 4
        keep = self.at
        self.at += 1
        last = self.class_letter()
        if len(last) > 1:
            self.at = keep
            return _escape(letter), 4
        if last < letter:
            self.refuse("a range in the regular expression is out of order", keep)
        return f"{_escape(letter)}-{_escape(last)}", 12

    def class_letter(self) -> str:
        """Read one character of a class, or a set, which comes back rendered."""
        letter = self.pattern[self.at]
        self.at += 1
        if letter != "\\":
            return letter
        letter = self.pattern[self.at : self.at + 1]
        if not letter:
            self.refuse(_UNTERMINATED)
        self.at += 1
        return _SETS.get(letter) or _OPPOSITES.get(letter) or letter


def _is_escaped(pattern: str) -> bool:
    """Tell whether the last character stands behind a backslash that is not itself escaped."""
    body = pattern[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _escape(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else rf"\x{{{ord(letter):X}}}"
