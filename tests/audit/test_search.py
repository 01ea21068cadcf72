"""Lines that are searched for: by time, path, user and database, a page at a time."""

from __future__ import annotations

import json
import pathlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.test_series import BEGAN, Clocks
from tests.examples import examples
from treedbd.audit.search import BadPosition, BadTime, Search, find_all, find_page, parse_time
from treedbd.audit.series import list_files


def line(number: int, **more: Any) -> bytes:
    at = BEGAN + timedelta(hours=number)
    time = f"{at:%Y-%m-%dT%H:%M:%S}.000Z"
    found = {"time": time, "kind": "write", "project": "p", "database": "d", "seq": number}
    return json.dumps(found | more).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two series with lines of five days, one line an hour."""
    folder = tmp_path_factory.mktemp("audit")
    clocks = Clocks()
    every = [clocks.open(folder / name) for name in ("access-1", "writes")]
    for number in range(120):
        uid = ("ada", "bob", None)[number % 3]
        path = ("/users/ada", "/users", "/rooms/1", "/")[number % 4]
        every[number % 2].append([line(number, uid=uid, path=path)])
        clocks.pass_by(hours=1)
    return folder


def numbers(folder: pathlib.Path, **search: Any) -> list[int]:
    return [json.loads(each)["seq"] for each in find_all(folder, Search(**search))]


def test_all_series_are_read_together_in_the_order_of_time(folder: pathlib.Path) -> None:
    assert numbers(folder) == list(range(120))
    assert len(list_files(folder / "writes")) == 6


def test_a_time_bounds_what_is_found(folder: pathlib.Path) -> None:
    since, until = parse_time("2026-12-01T00:00:00+01:00"), parse_time("2026-12-02")
    assert numbers(folder, since=since, until=until) == list(range(35, 60))
    assert numbers(folder, until=parse_time("2026-11-29")) == []
    assert numbers(folder, since=parse_time("2027-01-01")) == []


def test_a_user_a_path_and_a_database_choose_lines(folder: pathlib.Path) -> None:
    assert numbers(folder, uid="ada") == list(range(0, 120, 3))
    assert numbers(folder, uid="") == list(range(2, 120, 3))
    assert numbers(folder, path="/users/ada/name") == [n for n in range(120) if n % 4 in (0, 1, 3)]
    assert numbers(folder, path="users") == [n for n in range(120) if n % 4 in (0, 1, 3)]
    assert numbers(folder, path="/user") == list(range(3, 120, 4))
    assert numbers(folder, path="/") == list(range(120))
    assert numbers(folder, project="p", database="d") == list(range(120))
    assert numbers(folder, project="other") == []


@given(st.integers(1, 50), st.integers(100, 20_000), st.sampled_from(["ada", "bob", "", None]))
@settings(max_examples=examples(40))
def test_pages_show_each_line_once_in_bounded_work(
    folder: pathlib.Path, most_lines: int, most_bytes: int, uid: str | None
) -> None:
    found, begin, pages = list[int](), None, 0
    while True:
        page = find_page(folder, Search(uid=uid), begin, most_lines, most_bytes)
        assert len(page.lines) <= most_lines
        found += [json.loads(each)["seq"] for each in page.lines]
        begin, pages = page.next, pages + 1
        if begin is None:
            break
        assert pages < 2000
    assert sorted(found) == numbers(folder, uid=uid)


def test_a_page_goes_on_when_lines_have_come(tmp_path: pathlib.Path) -> None:
    series = Clocks().open(tmp_path / "writes")
    series.append([line(0), line(1)])
    page = find_page(tmp_path, Search(), None, 1)
    series.append([line(2)])
    assert page.next is not None
    again = find_page(tmp_path, Search(), page.next)
    assert [json.loads(each)["seq"] for each in again.lines] == [1, 2]


@pytest.mark.parametrize("text", ["", "x", "2026-13-01", "2026-11-28T18:00:00", "12:00", "é"])
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(BadTime, match="not a time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["x", "writes.1", "writes.1.-2", "../x.1.2", "writes.1.2,"])
def test_a_text_that_is_not_a_position_is_refused(folder: pathlib.Path, text: str) -> None:
    with pytest.raises(BadPosition, match="not a position"):
        find_page(folder, Search(), text)


def test_a_position_of_a_file_that_was_removed_goes_on_after_it(folder: pathlib.Path) -> None:
    page = find_page(folder, Search(), "writes.0.99999999,access-1.999.0")
    assert [json.loads(each)["seq"] for each in page.lines] == list(range(1, 120, 2))
