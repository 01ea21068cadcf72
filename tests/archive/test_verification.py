"""Archives verified: what the entries after a base lead to must be the next base."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import attrs
import pytest

from tests.archive.written_history import WrittenHistory
from treedbd.archive.segments import Entry, write_segment
from treedbd.archive.verification import find_faults

DB = "app/default"


def fill(folder: pathlib.Path) -> WrittenHistory:
    """Write numbers 1 to 5, with bases at 2 and 5, and deliver them as two segments."""
    history = WrittenHistory(folder, 1)
    for number in range(1, 6):
        history.put(DB, "count", number)
        if number in (2, 5):
            history.deliver()
            history.make_base(DB)
    history.close()
    return history


def replace_entry(history: WrittenHistory, change: Callable[[bytes], bytes]) -> None:
    """Write the last segment again, with another last entry, as if it had been so."""
    archive = history.archive()
    segment = archive.segments()[-1]
    header = archive.header(segment)
    assert header is not None
    records = list(archive.records(segment))
    last = records[-1]
    assert isinstance(last, Entry)
    records[-1] = attrs.evolve(last, content=change(last.content))
    history.place.put(segment.name, write_segment(header, records), is_new=False)


def test_a_sound_archive_has_no_faults(tmp_path: pathlib.Path) -> None:
    report = find_faults(fill(tmp_path).archive(), tmp_path / "work")
    assert (report.faults, report.objects, report.compared) == ([], 4, 2)
    assert [each.sequence for each in report.restored] == [5]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"sent":5', b'"sent":6', "is not what the entries before it lead to."),
        (b'"method":"put"', b'"method":"pop"', "The entry 5 cannot be read."),
    ],
)
def test_an_entry_that_is_not_what_was_written_is_found_by_the_next_base(
    tmp_path: pathlib.Path, old: bytes, new: bytes, reason: str
) -> None:
    history = fill(tmp_path)
    replace_entry(history, lambda content: content.replace(old, new))
    (fault,) = find_faults(history.archive(), tmp_path / "work").faults
    assert fault.endswith(reason)


def test_random_histories_have_no_faults(tmp_path: pathlib.Path) -> None:
    compared = 0
    for seed in range(2):
        (tmp_path / f"{seed}").mkdir()
        history = WrittenHistory(tmp_path / f"{seed}", seed)
        history.run(80)
        report = find_faults(history.archive(), tmp_path / f"{seed}" / "work")
        assert report.faults == []
        compared += report.compared
        history.close()
    assert compared > 0
