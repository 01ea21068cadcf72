"""Verification: any byte that is changed, a line or a file that is removed, a tail that is cut."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.test_series import Clocks, lines
from tests.examples import examples
from treedbd.audit.chain import Fault, Mark, Verification, read_file, verify
from treedbd.audit.series import HEAD, link_line, link_of_header, list_files, read_head

FILES: Final = 3
LINES: Final = 12


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A series of three files with four lines each."""
    folder = tmp_path_factory.mktemp("audit") / "writes"
    clocks = Clocks()
    series = clocks.open(folder)
    for number in range(LINES):
        series.append(lines(number))
        if number % 4 == 3 and number != LINES - 1:
            clocks.pass_by(days=1)
    series.close()
    return folder


@pytest.fixture
def copy(written: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it, which a test may damage."""
    return shutil.copytree(written, tmp_path / "writes")


def first_fault(found: Verification) -> Fault:
    assert found.faults
    return found.faults[0]


def edit(folder: pathlib.Path, number: int, content: list[bytes]) -> str:
    """Replace the lines of a file, and return its name."""
    file = list_files(folder)[number]
    file.path.write_bytes(b"".join(content))
    return file.name


def lines_of(folder: pathlib.Path, number: int) -> list[bytes]:
    return list_files(folder)[number].path.read_bytes().splitlines(keepends=True)


def test_a_series_as_it_was_written_has_no_fault(written: pathlib.Path) -> None:
    found = verify(written)
    assert (found.files, found.lines, found.faults) == (FILES, LINES, ())
    assert found.mark is not None
    assert Mark.parse(str(found.mark)) == found.mark


@given(st.data())
@settings(max_examples=examples(60))
def test_each_byte_that_is_changed_is_found_with_its_line(
    written: pathlib.Path, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, FILES - 1))
    file = list_files(written)[number]
    content = file.path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    try:
        file.path.write_bytes(content[:at] + bytes([other]) + content[at + 1 :])
        fault = first_fault(verify(written))
    finally:
        file.path.write_bytes(content)
    line = content[:at].count(b"\n") + 1
    # A changed header is found where something refers to it.
    assert fault.file == file.name
    assert fault.line in (line, line + 1) if line == 1 or content[at] == 10 else fault.line == line


@pytest.mark.parametrize("number", range(FILES))
@pytest.mark.parametrize("line", range(1, 5))
def test_a_line_that_is_removed_is_found(copy: pathlib.Path, number: int, line: int) -> None:
    content = lines_of(copy, number)
    name = edit(copy, number, content[:line] + content[line + 1 :])
    fault = first_fault(verify(copy))
    assert fault.file == name
    assert fault.line in (line + 1, line)  # the last one is missed at the end


@pytest.mark.parametrize("number", range(FILES))
def test_lines_that_change_places_are_found(copy: pathlib.Path, number: int) -> None:
    content = lines_of(copy, number)
    name = edit(copy, number, [*content[:2], content[3], content[2], *content[4:]])
    assert (first_fault(verify(copy)).file, first_fault(verify(copy)).line) == (name, 3)


@pytest.mark.parametrize("number", range(FILES))
def test_a_file_that_is_removed_is_found(copy: pathlib.Path, number: int) -> None:
    list_files(copy)[number].path.unlink()
    reasons = " ".join(map(str, verify(copy).faults))
    assert "removed" in reasons


@pytest.mark.parametrize("kept", [0, 10, 100, 300, 390])
def test_a_cut_tail_of_the_newest_file_is_found(copy: pathlib.Path, kept: int) -> None:
    file = list_files(copy)[-1]
    content = file.path.read_bytes()
    file.path.write_bytes(content[:kept])
    fault = first_fault(verify(copy))
    assert fault.file == file.name
    whole = [line for line in content[:kept].splitlines(keepends=True) if line.endswith(b"\n")]
    assert fault.line <= len(whole) + 1


def rewrite(folder: pathlib.Path, number: int) -> None:
    """Change a line, and compute the links of its file again."""
    header, *rest = lines_of(folder, number)
    link, content = link_of_header(header[:-1]), [header]
    for at, line in enumerate(rest):
        body = line[: line.rfind(b',"chain"')] + b"}"
        body = body.replace(b'"n":', b'"m":') if at == 1 else body
        link = link_line(link, body)
        content.append(body[:-1] + b',"chain":"' + link + b'"}\n')
    edit(folder, number, content)


@pytest.mark.parametrize("number", range(FILES))
def test_links_that_were_computed_again_are_found_by_the_next_file_or_the_head(
    copy: pathlib.Path, number: int
) -> None:
    name = list_files(copy)[number].name
    rewrite(copy, number)
    assert first_fault(verify(copy)).file == name


def test_a_forger_of_everything_is_found_by_a_mark_that_was_kept(copy: pathlib.Path) -> None:
    mark = verify(copy).mark
    assert mark is not None
    rewrite(copy, FILES - 1)
    head, file = read_head(copy), list_files(copy)[-1]
    assert head is not None
    (copy / HEAD).unlink()
    # Who writes the head as well is not found without the mark.
    for each in list_files(copy)[:-1]:
        each.path.unlink()
    clocks = Clocks()
    clocks.pass_by(days=2)
    clocks.open(copy).open()
    assert verify(copy, (mark,)).faults
    assert file.name in str(verify(copy, (mark,)).faults[0])


def test_a_mark_holds_while_the_series_goes_on(copy: pathlib.Path) -> None:
    mark = verify(copy).mark
    assert mark is not None
    clocks = Clocks()
    clocks.pass_by(days=2)
    series = clocks.open(copy)
    series.append(lines(100, 101))
    clocks.pass_by(days=1)
    series.append(lines(102))
    assert verify(copy, (mark,)).faults == ()


@pytest.mark.parametrize("damage", ["cut", "changed", "head", "removed"])
def test_a_daemon_that_starts_again_hides_nothing(copy: pathlib.Path, damage: str) -> None:
    file = list_files(copy)[-1]
    content = file.path.read_bytes()
    if damage == "cut":
        file.path.write_bytes(b"".join(lines_of(copy, FILES - 1)[:-1]))
    elif damage == "changed":
        file.path.write_bytes(content.replace(b'"n":9', b'"n":7'))
    elif damage == "head":
        (copy / HEAD).unlink()
    else:
        file.path.unlink()
    clocks = Clocks()
    clocks.pass_by(days=2)
    series = clocks.open(copy)
    series.append(lines(100))
    series.append(lines(101))
    series.close()
    assert verify(copy).faults


def test_files_that_are_removed_by_age_are_not_missed(copy: pathlib.Path) -> None:
    first, second, third = list_files(copy)
    clocks = Clocks()
    head = read_head(copy)
    assert head is not None
    series = clocks.open(copy)
    series.append([b'{"kind":"removed","file":"%s"}' % first.name.encode()])
    series.close()
    # The head is written first, so a crash between leaves one file too many.
    (copy / HEAD).write_bytes(
        (copy / HEAD).read_bytes().replace(first.name.encode(), second.name.encode(), 1)
    )
    assert verify(copy).faults == ()
    first.path.unlink()
    assert verify(copy).faults == ()
    second.path.unlink()
    (copy / HEAD).write_bytes(
        (copy / HEAD).read_bytes().replace(second.name.encode(), third.name.encode(), 1)
    )
    assert "not because of its age" in str(first_fault(verify(copy)))


def test_a_file_of_another_series_and_what_is_not_a_file_are_found(copy: pathlib.Path) -> None:
    moved = copy.rename(copy.parent / "access-1")
    assert "of the series writes" in str(first_fault(verify(moved)))
    moved.rename(copy)
    file = list_files(copy)[1].path
    file.unlink()
    os.mkfifo(file)
    assert "is not a file" in str(verify(copy).faults)


def test_lines_are_read_without_their_links_and_from_any_place(written: pathlib.Path) -> None:
    file = list_files(written)[0]
    read = list(read_file(file))
    assert [line for _, line in read] == lines(0, 1, 2, 3)
    assert [line for _, line in read_file(file, read[1][0])] == lines(2, 3)


@pytest.mark.parametrize(
    "text", ["", "a", "writes/f:1", "writes/f:x:" + "0" * 64, ":1:" + "0" * 64]
)
def test_a_text_that_is_no_mark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a mark"):
        Mark.parse(text)
