"""Versions of rules in files: numbered, bounded, and that in force found by its text."""

from __future__ import annotations

import pathlib
import stat

import pytest

from treedbd.limits import RULES_VERSIONS
from treedbd.store.rules_versions import UNKNOWN, Origin, RulesVersion, VersionFiles

ADA = Origin(1_700_000_000_000, "ada", is_admin=True)


@pytest.fixture
def files(tmp_path: pathlib.Path) -> VersionFiles:
    return VersionFiles(tmp_path / "versions")


def add(files: VersionFiles, number: int, text: bytes, origin: Origin = ADA) -> None:
    files.add(RulesVersion(number, origin, len(text)), text)


def test_a_version_reads_back_with_its_origin(files: VersionFiles, tmp_path: pathlib.Path) -> None:
    add(files, 1, b'{\n"rules": {}}\n')
    add(files, 2, b"second", Origin(5, None, is_admin=True))
    assert files.list_all(b"second", UNKNOWN) == [
        RulesVersion(2, Origin(5, None, is_admin=True), 6, is_current=True),
        RulesVersion(1, ADA, 15),
    ]
    assert files.read(1) == b'{\n"rules": {}}\n'
    assert files.read(3) is None
    assert stat.S_IMODE((tmp_path / "versions").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "versions" / "1.rules").stat().st_mode) == 0o600


def test_of_equal_texts_the_newest_is_in_force(files: VersionFiles) -> None:
    for number, text in enumerate((b"a", b"b", b"a", b"c"), 1):
        add(files, number, text)
    current = {each.number for each in files.list_all(b"a", UNKNOWN) if each.is_current}
    assert current == {3}


def test_rules_that_are_no_version_are_the_newest(files: VersionFiles) -> None:
    assert files.list_all(None, UNKNOWN) == []
    assert files.list_all(b"old", Origin(7)) == [RulesVersion(1, Origin(7), 3, is_current=True)]
    add(files, 4, b"put")
    assert files.list_all(b"by", Origin(7)) == [
        RulesVersion(5, Origin(7), 2, is_current=True),
        RulesVersion(4, ADA, 3),
    ]
    assert [each.is_current for each in files.list_all(None, UNKNOWN)] == [False]


def test_the_oldest_are_removed(files: VersionFiles) -> None:
    for number in range(1, RULES_VERSIONS + 3):
        add(files, number, b"%d" % number)
    listed = [each.number for each in files.list_all(b"1", UNKNOWN)]
    assert (listed[0], listed[-1], len(listed)) == (RULES_VERSIONS + 2, 3, RULES_VERSIONS)
    files.trim()
    assert [files.read(number) for number in (1, 2, 3)] == [None, None, b"3"]


@pytest.mark.parametrize("head", [b"", b"{", b"[1]", b'{"time": "x", "uid": 1, "admin": 1}'])
def test_a_damaged_origin_is_not_known(
    files: VersionFiles, tmp_path: pathlib.Path, head: bytes
) -> None:
    add(files, 1, b"text")
    (tmp_path / "versions" / "1.rules").write_bytes(head + b"\ntext")
    (tmp_path / "versions" / "other").write_bytes(b"")
    (tmp_path / "versions" / "2.rules.new").write_bytes(b"unfinished")
    assert files.list_all(b"text", UNKNOWN) == [RulesVersion(1, UNKNOWN, 4, is_current=True)]
