"""`docs/volatile.md`: its example, line by line, and its bounds."""

from __future__ import annotations

import pathlib
import re
from typing import Final

from tests.daemon import Daemon
from tests.pages import DOCS, Check, Shell, check_blocks, no_output, read_blocks, with_ports_of
from treedbd.database.volatile_exchange import MAX_KEPT
from treedbd.limits import KIB, MAX_VOLATILE_BYTES, MAX_VOLATILE_CHANGES, MIB, Limits
from treedbd.rules.volatile import MAX_HZ
from treedbd.store.volatile import TOP_KEY_BYTES

PAGE: Final = (DOCS / "volatile.md").read_text()


def test_the_example_of_the_page_can_be_followed(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon:
        with Shell(tmp_path, lambda text: with_ports_of(text, daemon)) as shell:

            def write_rules(text: str) -> Check:
                (tmp_path / "rules.json").write_text(text)
                return no_output

            def show(_: str) -> Check:
                return no_output

            kinds = {
                "json rules.json": write_rules,
                "sh": shell.run,
                "sh start": shell.start,
                "js": show,
            }
            check_blocks(read_blocks("volatile.md"), kinds)
        assert daemon.request("GET", "/boards/team/cursors.json").json == {"ada": {"x": 3, "y": 7}}


def test_the_bounds_are_those_of_the_page() -> None:
    assert f"from 1 to {MAX_HZ}" in PAGE
    bounds = dict(re.findall(r"^\| ([^|]+) \| [^|]* \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert bounds["what one write sets at one volatile place"] == f"{MAX_VOLATILE_BYTES // KIB} KiB"
    places = bounds["volatile places that one write sets or removes by their own paths"]
    assert places == str(MAX_VOLATILE_CHANGES)
    path = bounds["path of a volatile node: its keys in UTF-8, and two bytes for each"]
    assert path == f"{TOP_KEY_BYTES} bytes"
    kept = "places whose changes a process keeps while it cannot send them"
    assert bounds[kept] == str(MAX_KEPT)
    total = bounds["volatile nodes of one database, as JSON, and 256 bytes for each"]
    assert total == f"{Limits().volatile_bytes // MIB} MiB"
