"""Parts written to a file leave the value, and the rows, of a sound store."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import example, given, settings

from tests.cli.loading.test_documents import TARGET, TEXTS, cut, expected
from tests.examples import examples
from treedbd.cli.check import verify_file
from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.importing import open_writer
from treedbd.cli.loading.transfer import StoredNode
from treedbd.config.settings import load_settings
from treedbd.store.shelf import open_shelf
from treedbd.tree.edit import apply, make_put
from treedbd.tree.types import Place
from treedbd.tree.value import as_json, parse

LONG = ",".join(f'"k{number}": {{"text": "{"x" * 90}", "n": [1, 2]}}' for number in range(200))


def load(folder: pathlib.Path, parts: list[Any]) -> pathlib.Path:
    settings = load_settings(None, {"data": str(folder)}, folder)
    file = folder / "demo" / "default.shelf"
    with open_writer(settings, StoredNode(file, TARGET)) as writer:
        for part in parts:
            writer.write(part)
    return file


@settings(max_examples=examples(40))
@given(TEXTS)
@example(f'{{"all": {{{LONG}, "k5": null, ".priority": 3, "k7": 1, "k6": {{"a": null}}}}}}')
@example(f'{{"all": {{{LONG}}}, "b": 1, "all": {{"x": {{{LONG}}}}}}}')
@example(f'{{"at": {{".sv": "timestamp"}}, "all": {{{LONG}}}}}')
def test_a_store_holds_what_the_document_leaves(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        sizes = {"fragment_bytes": 900, "part_bytes": 2500} if len(text) > 5000 else {}
        file = load(pathlib.Path(name), cut(text, **sizes))
        assert verify_file(file) == []
        with open_shelf(file) as shelf:
            found = shelf.export("t")
            stored: Any = shelf.get("t/at")
    if ".sv" in text:
        assert stored > 1_600_000_000_000
        text = text.replace('{".sv": "timestamp"}', str(stored))
    assert as_export(text) == found


def as_export(text: str) -> Any:
    whole: Any = expected(text)
    return None if whole is None else as_json(whole["t"])


def test_what_the_tree_cannot_hold_changes_nothing(tmp_path: pathlib.Path) -> None:
    parts = cut(f'{{"all": {{{LONG}}}, "d": {{"e": {{"f.g": 2}}}}}}', fragment_bytes=900)
    with pytest.raises(CommandFailed, match="not allowed"):
        load(tmp_path, parts)
    assert verify_file(tmp_path / "demo" / "default.shelf") == []


def test_the_log_says_that_something_was_written(tmp_path: pathlib.Path) -> None:
    file = load(tmp_path, cut(f"{{{LONG}}}", fragment_bytes=900, part_bytes=9000))
    with open_shelf(file) as shelf:
        sequence = shelf._store.read(lambda nodes: nodes.rows.sequence())
        kept: Any = shelf.export("t")
    assert sequence >= 2
    assert kept == as_json(apply(None, make_put(Place(()), parse(f"{{{LONG}}}".encode())).changes))
