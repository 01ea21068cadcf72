from __future__ import annotations

import pytest

from treedbd.tree.query import PARAMETERS, Shallow, parse_shallow
from treedbd.tree.types import InvalidQuery


@pytest.mark.parametrize(
    ("parameters", "shallow"),
    [
        ({}, None),
        ({"shallow": "false"}, None),
        ({"shallow": "false", "orderBy": '"a"', "startAt": "1"}, None),
        ({"v": "2"}, None),
        ({"shallow": "true"}, Shallow()),
        ({"shallow": "true", "v": "2"}, Shallow(2)),
        ({"shallow": "true", "limitToFirst": "5"}, Shallow(1, 5)),
        ({"shallow": "true", "startAfter": "k"}, Shallow(1, None, "k")),
        ({"shallow": "true", "startAfter": '"k"'}, Shallow(1, None, "k")),
        ({"shallow": "true", "startAfter": '"\\"k"'}, Shallow(1, None, '"k')),
        ({"shallow": "true", "startAfter": "5"}, Shallow(1, None, "5")),
        ({"shallow": "true", "startAfter": "null"}, Shallow(1, None, "null")),
        ({"shallow": "true", "startAfter": 'a"b'}, Shallow(1, None, 'a"b')),
        (
            {"shallow": "true", "v": "2", "limitToFirst": "1", "startAfter": "a b"},
            Shallow(2, 1, "a b"),
        ),
    ],
)
def test_parameters_describe_a_shallow_read(
    parameters: dict[str, str], shallow: Shallow | None
) -> None:
    assert parse_shallow(parameters) == shallow


@pytest.mark.parametrize("text", ["", "1", "yes", "True", "TRUE", "null", '"true"'])
def test_shallow_is_true_or_false(text: str) -> None:
    with pytest.raises(InvalidQuery, match="shallow must be true or false"):
        parse_shallow({"shallow": text})


@pytest.mark.parametrize("text", ["", "1", "3", "02", "2.0", '"2"', "v2"])
def test_the_only_version_that_can_be_named_is_the_second(text: str) -> None:
    for parameters in ({"v": text}, {"shallow": "true", "v": text}):
        with pytest.raises(InvalidQuery, match="v must be 2"):
            parse_shallow(parameters)


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"limitToFirst", "startAfter"}))
def test_shallow_cannot_be_combined_with_a_query(name: str) -> None:
    with pytest.raises(InvalidQuery, match=f"not with {name}"):
        parse_shallow({"shallow": "true", name: "1", "limitToFirst": "1"})


@pytest.mark.parametrize("text", ["", "0", "-1", "5.0", "+5", "1e3", "9" * 101])
def test_the_limit_of_a_page_is_a_whole_number_from_1_on(text: str) -> None:
    with pytest.raises(InvalidQuery, match="limitToFirst"):
        parse_shallow({"shallow": "true", "limitToFirst": text})


@pytest.mark.parametrize("text", ["", '"', '"k', '""', '"k"x', "a/b", "a.b", '"a/b"', '"\\u0000"'])
def test_a_page_starts_after_a_key(text: str) -> None:
    with pytest.raises(InvalidQuery, match="startAfter"):
        parse_shallow({"shallow": "true", "startAfter": text})
