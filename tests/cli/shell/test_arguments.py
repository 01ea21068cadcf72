"""Arguments of the shell's commands."""

from __future__ import annotations

import pytest

from treedbd.cli.exit import CommandFailed
from treedbd.cli.shell.shell import (
    QUERY_OPTIONS,
    Given,
    Shape,
    parse_arguments,
)

USAGE = "cat [PATH]"
CAT = Shape(flags=("-l", "--raw"), options=("-n", *QUERY_OPTIONS))
SET = Shape(least=1, has_value=True)


def parse(shape: Shape, text: str) -> Given:
    return parse_arguments(shape, text, USAGE)


def test_options_may_stand_before_and_after_the_path() -> None:
    for text in ("-l -n 3 'a b'", "'a b' -n=3 -l"):
        given = parse(CAT, text)
        assert (given.words, given.flags, given.options) == (
            ["a b"],
            frozenset({"-l"}),
            {"-n": "3"},
        )


def test_a_key_may_begin_with_a_hyphen() -> None:
    assert parse(CAT, "-Nabc").words == ["-Nabc"]
    assert parse(CAT, "-- --raw").words == ["--raw"]
    assert parse(SET, "-Nabc 1").words == ["-Nabc"]


def test_the_options_of_a_query_become_parameters() -> None:
    given = parse(CAT, "--order-by age --start-at 5 --limit-to-first=2")
    assert given.query() == {"orderBy": '"age"', "startAt": "5", "limitToFirst": "2"}
    assert parse(CAT, "a").query() == {}


@pytest.mark.parametrize("value", ['"a  b"', "--x", '{"a": "it\'s"}', "-5", "-l"])
def test_the_value_is_the_rest_of_the_command(value: str) -> None:
    assert parse(SET, f"a   {value} ").value == value


def test_a_number_is_within_bounds() -> None:
    assert parse(CAT, "-n 7").number("-n", 1, 10) == 7
    assert parse(CAT, "").number("-n", 1, 10) == 1
    for text in ("11", "0", "x", "-1", "9" * 5000):
        with pytest.raises(CommandFailed, match="a number from 1 to 10"):
            parse(CAT, f"-n {text}").number("-n", 1, 10)


@pytest.mark.parametrize(
    ("shape", "text", "sentence"),
    [
        (CAT, "--rwa", "There is no option --rwa: cat"),
        (CAT, "a b", "The command is written cat"),
        (CAT, "a -n", "-n needs a value: cat"),
        (CAT, "'a", "A quotation mark is not closed"),
        (SET, "", "The command is written cat"),
        (Shape(most=0), "x", "The command is written cat"),
    ],
)
def test_wrong_arguments_are_an_error(shape: Shape, text: str, sentence: str) -> None:
    with pytest.raises(CommandFailed, match=f"^{sentence}"):
        parse(shape, text)
