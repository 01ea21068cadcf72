"""How the shell prints values, names and sizes."""

from __future__ import annotations

import re

import pytest

from treedbd.cli.shell.shell import (
    Screen,
    colour_json,
    format_child,
    in_columns,
    make_safe,
    make_screen,
)

COLOURS = re.compile("\x1b\\[[0-9]*m")


def test_colours_change_nothing_but_colours() -> None:
    text = '{"a\\"b" : [1, -2.5e+3, "x:", true, null], "true": "1"}'
    coloured = colour_json(text)
    assert COLOURS.sub("", coloured) == text
    assert '\x1b[34m"a\\"b"\x1b[0m :' in coloured
    assert '\x1b[32m"x:"\x1b[0m' in coloured
    assert "\x1b[36m-2.5e+3\x1b[0m" in coloured
    assert "\x1b[35mnull\x1b[0m" in coloured
    assert '\x1b[32m"1"\x1b[0m' in coloured


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\x7f", "\u202e", "\u2066"])
def test_no_value_moves_the_cursor(character: str) -> None:
    assert make_safe(f"a{character}b") == f"a\\u{ord(character):04x}b"


def test_a_value_is_printed_as_it_arrives(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Screen(is_terminal=False, has_colour=False).print_value([b'"\xc2', b'\x9bx"'])
    assert capsysbinary.readouterr().out == b'"\xc2\x9bx"\n'
    screen = Screen(is_terminal=True, has_colour=False)
    screen.print_value([b'{\n  "a": "\xc2', b'\x9bx"\n', b"}"])
    assert capsysbinary.readouterr().out == b'{\n  "a": "\\u009bx"\n}\n'


def test_a_coloured_value_is_coloured_across_pieces(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    Screen(is_terminal=True, has_colour=True).print_value([b'"ab', b'c"\n'])
    assert capsysbinary.readouterr().out == b'\x1b[32m"abc"\x1b[0m\n'


def test_names_stand_in_columns() -> None:
    assert in_columns(["a", "bb", "c", "d", "e"], 12) == ["a   c   e", "bb  d"]
    assert in_columns(["名前", "a"], 10) == ["名前  a"]
    assert in_columns(["x" * 50, "y"], 10) == ["x" * 50, "y"]
    assert in_columns([], 10) == []


def test_a_child_is_shown_by_its_value_or_its_size() -> None:
    assert format_child({".sz": 12345}, 20) == "(12,345 bytes)"
    assert format_child("é", 20) == '"é"'
    assert format_child("x" * 50, 10) == '"xxxxxxxx…'


def test_a_pipe_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not make_screen().has_colour
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert make_screen().has_colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not make_screen().has_colour
    assert make_screen().is_terminal
