"""`docs/logging.md`: its tables are the fields of the code, its examples are true."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Final

import attrs
import pytest

from tests.pages import DOCS
from treedbd.config.settings import LogSettings, load_settings
from treedbd.database.active_rules import FIELDS as RULE_FIELDS
from treedbd.errors import BUDGET_LINES, BUDGET_S
from treedbd.http1.request import MAX_REQUEST_ID_CHARACTERS
from treedbd.operating.log import FILE_MODE, MEMBERS, LogRecord, format_json, format_text
from treedbd.web.admin import TOKEN_FIELDS
from treedbd.web.reading import MAX_LOGGED
from treedbd.web.request_log import CLIENT_CLOSED, FIELDS, MAX_FIELD, MAX_PATH, format_combined

PAGE: Final = (DOCS / "logging.md").read_text()
EXAMPLE: Final = next(line.strip() for line in PAGE.splitlines() if line.startswith('    {"time"'))


def table_after(words: str) -> tuple[str, ...]:
    """Return the names in the first column of the first table after some words."""
    _, _, rest = PAGE.partition(words)
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table is not None
    return tuple(re.findall(r"^\| `(\w+)` \|", table[0], re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("Members of every object", MEMBERS),
        ("## The access log", FIELDS),
        ("## Made tokens", TOKEN_FIELDS),
        ("**Slow rules**", RULE_FIELDS),
    ],
)
def test_each_table_has_the_names_of_the_code(words: str, names: tuple[str, ...]) -> None:
    assert table_after(words) == names


def test_the_examples_are_what_is_written() -> None:
    shown = json.loads(EXAMPLE)
    fields = {name: value for name, value in shown.items() if name not in MEMBERS}
    entry = LogRecord(1795519213.019, "info", "request", shown["message"], fields)
    assert format_json(entry) == f"{EXAMPLE}\n"
    _, _, text = format_text(entry).partition(" ")
    assert f" {text}" in PAGE
    line = format_combined(fields, 1795519213.019)
    assert f"    {line}\n" in PAGE


def test_the_settings_of_the_page_are_valid(tmp_path: pathlib.Path) -> None:
    block = re.search(r"((?:^    .*\n|^\n)+)", PAGE[PAGE.index("    [log]") :], re.MULTILINE)
    assert block is not None
    (tmp_path / "treedb.toml").write_text(block[1])
    settings = load_settings(tmp_path / "treedb.toml", {}, tmp_path)
    assert settings.log == LogSettings("json", 0.1, 5.0, 20.0)
    assert settings.http.access_log is True
    for field in attrs.fields(LogSettings):
        assert f"    {field.name} = " in block[1]
    assert LogSettings() == LogSettings("text", 1.0, 5.0, 0.0)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    for words in (
        f"at most {MAX_PATH} characters",
        f"at most {MAX_FIELD} characters",
        f"{CLIENT_CLOSED} if the client went",
        f"1 to {MAX_REQUEST_ID_CHARACTERS} characters",
        f"at most {BUDGET_LINES} lines a minute",
        f"at most {MAX_LOGGED} of them",
        f"with mode 0{FILE_MODE:o}",
    ):
        assert words in PAGE
    assert BUDGET_S == 60.0
