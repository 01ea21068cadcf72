"""Lines of the shell: commands, words, values, and what goes on in the next line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.cli.shell.shell import (
    OpenLine,
    command_starts,
    is_open,
    next_word,
    quote,
    split_commands,
    split_value,
    split_words,
)


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_quoted_text_is_one_word(texts: list[str]) -> None:
    words = split_words(" ".join(map(quote, texts)))
    assert [word.text for word in words] == texts
    assert all(word.is_closed for word in words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  cd  a/b ", ["cd", "a/b"]),
        ("""cat 'a b' "c \\" d" e\\ f""", ["cat", "a b", 'c " d', "e f"]),
        ("""it"'"s""", ["it's"]),
        ("''", [""]),
        ("grüße/名前", ["grüße/名前"]),
    ],
)
def test_words_are_quoted_as_in_a_shell(line: str, words: list[str]) -> None:
    assert [word.text for word in split_words(line)] == words


@pytest.mark.parametrize("line", ["'a b", '"a b', "x'a b"])
def test_the_last_word_may_be_unclosed(line: str) -> None:
    word = next_word(line, 0)
    assert word is not None
    assert not word.is_closed
    assert word.text.endswith("a b")
    assert (word.start, word.end) == (0, len(line))


@pytest.mark.parametrize("text", ["ada", "a/b", "-Nx_1", "user@x", "名前"])
def test_a_plain_key_is_not_quoted(text: str) -> None:
    assert quote(text) == text


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("ls; cat a", ["ls", "cat a"]),
        (";; ls ;", ["ls"]),
        ('set a "x;y"; ls', ['set a "x;y"', "ls"]),
        ('set a {"x": [1; 2]}', ['set a {"x": [1; 2]}']),
        ('set a "\\";"', ['set a "\\";"']),
        ("cat 'a;b'", ["cat 'a;b'"]),
        ("# set a; ls", []),
        ("  # x", []),
        ('set a "# no comment"', ['set a "# no comment"']),
    ],
)
def test_commands_are_separated_outside_of_quotation_marks(line: str, commands: list[str]) -> None:
    assert split_commands(line) == commands


def test_the_last_command_begins_after_the_last_semicolon() -> None:
    assert command_starts("ls; cat 'a;b") == [0, 3]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ls", False),
        ("set a {", True),
        ('set a {"x": [1, 2', True),
        ('set a {"x": [1, 2]}', False),
        ('set a "{"', False),
        ('set a "\\"["', False),
        ("set a '{", True),
        ("set a '[]'", False),
        ("cat it's", False),
        ('set a "unclosed', False),
        ("ls ]", False),
        ("ls ] ; set a [", True),
    ],
)
def test_a_command_goes_on_until_its_brackets_close(line: str, expected: bool) -> None:
    assert is_open(line) == expected


def test_lines_are_added_one_by_one() -> None:
    command = OpenLine()
    assert command.add('set a {"x": [\n')
    assert command.add('1, "]}",\n')
    assert command.add("]\n")
    assert not command.add("}\n")
    quoted = OpenLine()
    assert quoted.add("set a '[1,\n")
    assert quoted.add('"x"\n')
    assert not quoted.add("]'\n")


@pytest.mark.parametrize("text", ["1", '"a b"', "null", '{"it\'s": [1,\n 2]}', "true", "'a' 'b'"])
def test_a_value_is_sent_as_it_is(text: str) -> None:
    assert split_value(text)[0] == ("a" if text == "'a' 'b'" else text)


def test_a_value_may_have_single_quotation_marks_around_it() -> None:
    assert split_value("""'"hello"'""") == ('"hello"', "")
    assert split_value("""'{"a": 1}' --silent""") == ('{"a": 1}', " --silent")


@pytest.mark.parametrize("value", ["38", '{"a": " --silent"}', '"a b"', "[1,\n2]", "null"])
def test_what_follows_a_value_is_no_part_of_it(value: str) -> None:
    assert split_value(f"{value} --silent") == (value, " --silent")


@pytest.mark.parametrize("text", ["Ada", "38x --silent", "--silent", '"open --silent', "[" * 9999])
def test_a_text_that_is_not_json_is_the_value(text: str) -> None:
    assert split_value(text) == (text, "")
