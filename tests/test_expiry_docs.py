"""`docs/expiry.md`: its rules are parsed, its errors are those of the code, its chat forgets."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.daemon import SERVE, Daemon
from tests.pages import DOCS, Shell, check_blocks, no_output, read_blocks, with_ports_of
from treedbd.database.expirer import PURPOSE, RETRY_S
from treedbd.limits import MAX_TTL_S
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import parse_rules

PAGE = (DOCS / "expiry.md").read_text()


def test_its_rules_are_valid_and_its_error_is_the_one_that_is_shown() -> None:
    first, chat = read_blocks("expiry.md", "json")
    assert all(parse_rules(block.text).expiry is not None for block in (first, chat))
    shown = read_blocks("expiry.md", "text")[0].text.strip()
    with pytest.raises(InvalidRules) as refusal:
        parse_rules('{"rules":{"a":{"$b":{".ttl":"data.val() + now"}}}}')
    assert re.sub(r"^1:\d+", "", str(refusal.value)) == re.sub(r"^1:\d+", "", shown)


def test_its_figures_are_those_of_the_code() -> None:
    assert f"{MAX_TTL_S} (ten years)" in PAGE
    assert f"tried again every {RETRY_S:.0f} seconds" in PAGE
    assert f"its `means` is `{PURPOSE}`" in PAGE


def test_the_chat_forgets(tmp_path: pathlib.Path) -> None:
    with (
        Daemon(tmp_path, program=SERVE, config=None) as daemon,
        Shell(tmp_path, lambda text: with_ports_of(text, daemon)) as shell,
    ):
        _, chat = read_blocks("expiry.md", "json")
        (tmp_path / "chat.rules.json").write_text(chat.text)
        blocks = read_blocks("expiry.md", "sh", "text")[1:]
        check_blocks(blocks, {"sh": shell.run, "none": lambda _: no_output})
