"""How values are printed on a terminal and in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

import pytest

from treedbd.cli.data import colour_json, make_safe, print_body, styled_pieces
from treedbd.cli.exit import has_colour, write_out
from treedbd.cli.options import NoResponse

COLOURS = re.compile("\x1b\\[[0-9]*m")


class FakeResponse:
    """A response with a body."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def pieces(self) -> Sequence[bytes]:
        return self._pieces


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output a terminal without colours."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def printed(capture: pytest.CaptureFixture[bytes], *pieces: bytes) -> bytes:
    """Return what is printed of a body."""
    print_body(FakeResponse(pieces), write_out)  # type: ignore[arg-type]
    return capture.readouterr().out


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
    assert printed(capsysbinary, b'"\xc2', b'\x9bx"') == b'"\xc2\x9bx"\n'


def test_a_value_is_safe_on_a_terminal(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    shown = printed(capsysbinary, b'{\n  "a": "\xc2', b'\x9bx"\n', b"}")
    assert shown == b'{\n  "a": "\\u009bx"\n}\n'


def test_a_coloured_value_is_coloured_across_pieces(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    monkeypatch.delenv("NO_COLOR")
    assert printed(capsysbinary, b'"ab', b'c"\n') == b'\x1b[32m"abc"\x1b[0m\n'


def test_a_pipe_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    assert not has_colour()
    monkeypatch.delenv("NO_COLOR")
    assert has_colour()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not has_colour()


STYLED = '{"a b":[1,-2.5e3,true,null,"x\\\\"],"k\\"{":{"ü":"a,\\"b"}}'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_json_is_styled_the_same_however_it_arrives(size: int) -> None:
    text = STYLED.encode()
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    assert b"".join(styled_pieces(pieces, colour_json)) == colour_json(STYLED).encode()


def test_json_without_line_ends_is_shown_as_it_arrives() -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"a":1,"b'
        raise NoResponse("cut off")

    shown = styled_pieces(pieces(), make_safe)
    assert next(shown) == b'{"a":1,"b'
    shown = styled_pieces(pieces(), str)
    assert next(shown) == b'{"a":1,'
    assert next(shown) == b'"b'
    with pytest.raises(NoResponse):
        next(shown)


def test_a_long_string_is_not_kept_to_its_end() -> None:
    pieces = [b'{"a":1,"b":"', b"x" * 70_000, b'y"', b"}"]
    shown = list(styled_pieces(pieces, colour_json))
    assert shown[1:] == [b'"b":"' + b"x" * 70_000, b'y"', b"}", b""]
