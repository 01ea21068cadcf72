"""`docs/clients.md` names the versions that these tests install."""

from __future__ import annotations

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"


def test_the_page_names_the_versions_that_are_tried() -> None:
    tried = dict(re.findall(r"^\| \[([^ \]]+)[^|]*\| ([0-9.]+) \|", PAGE.read_text(), re.MULTILINE))
    pins = re.findall("^(.+)==(.+)$", (HERE / "requirements.txt").read_text(), re.MULTILINE)
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    installed = {name.lower(): version for name, version in pins}
    for name in ("firebase-tools", "@firebase/database"):
        installed[name] = locked[f"node_modules/{name}"]["version"]
    assert tried == installed
