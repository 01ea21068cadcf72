"""Text of unknown origin, made safe to print in a log, a sentence or a terminal."""

from __future__ import annotations


def in_one_line(text: str) -> str:
    """Return text with escapes for what would start another line or move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
