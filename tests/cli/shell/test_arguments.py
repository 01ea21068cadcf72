"""Arguments of the shell's commands, and that they are those of `treedb`."""

from __future__ import annotations

from argparse import Namespace

import pytest

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import query_parameters
from treedbd.cli.shell.shell import COMMANDS


def parse(command: str, text: str) -> Namespace:
    return COMMANDS[command].parser.parse(text, Namespace())


def test_options_may_stand_before_and_after_the_path() -> None:
    for text in ("--json -n 3 'a b'", "'a b' -n=3 --json"):
        given = parse("watch", text)
        assert (given.url, given.json, given.count) == ("a b", True, 3)


def test_a_key_may_begin_with_a_hyphen() -> None:
    assert parse("get", "-Nabc").url == "-Nabc"
    assert parse("get", "-- --shallow").url == "--shallow"
    assert parse("set", "-Nabc 1").url == "-Nabc"


def test_without_a_path_a_read_is_of_the_place() -> None:
    assert [parse(name, "").url for name in ("get", "cat", "ls", "tree", "watch")] == ["."] * 5


def test_the_options_of_a_query_become_parameters() -> None:
    given = parse("get", "--order-by age --start-at 5 --limit-to-first=2")
    expected = {"orderBy": '"age"', "startAt": "5", "limitToFirst": "2"}
    assert query_parameters(given) == expected
    assert query_parameters(parse("get", "a")) == {}


@pytest.mark.parametrize("value", ['"a  b"', "--x", '{"a": "it\'s"}', "-5", "-l"])
def test_the_value_is_the_rest_of_the_command(value: str) -> None:
    assert parse("set", f"a   {value} ").value == value


def test_options_may_follow_the_value() -> None:
    given = parse("set", """a {"b": " --etag"} --silent --if-match '"x y"'""")
    assert (given.value, given.silent, given.if_match) == ('{"b": " --etag"}', True, '"x y"')
    with pytest.raises(
        CommandFailed, match=r"^There is no option --silnt\. Did you mean --silent\?"
    ):
        parse("set", "a 38 --silnt")


def test_a_number_is_within_bounds() -> None:
    assert parse("tree", "--depth 7").depth == 7
    for text in ("33", "0", "x", "-1", "9" * 5000):
        with pytest.raises(CommandFailed, match=r"^--depth must be a number from 1 to 32: tree"):
            parse("tree", f"--depth {text}")


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("cat", "--rwa", r"There is no option --rwa\. Usage: cat"),
        ("cat", "a b", "The command is written cat"),
        ("watch", "a -n", "-n needs a value: watch"),
        ("cat", "'a", "A quotation mark is not closed"),
        ("set", "", "The following arguments are required: URL, VALUE: set"),
        ("rm", "", "The following arguments are required: URL: rm"),
        ("pwd", "x", "The command is written pwd"),
    ],
)
def test_wrong_arguments_are_an_error(command: str, text: str, sentence: str) -> None:
    with pytest.raises(CommandFailed, match=f"^{sentence}"):
        parse(command, text)
