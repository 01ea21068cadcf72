"""`docs/clients.md` names the versions that these tests install."""

from __future__ import annotations

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"
NODE = ("firebase", "@firebase/database", "firebase-tools", "geofire", "rxfire", "vuefire")
CHAT = PAGE.parent / "examples" / "chat.html"


def test_the_page_names_the_versions_that_are_tried() -> None:
    tried = dict(re.findall(r"^\| \[([^ \]]+)[^|]*\| ([0-9.]+) \|", PAGE.read_text(), re.MULTILINE))
    pins = re.findall("^(.+)==(.+)$", (HERE / "requirements.txt").read_text(), re.MULTILINE)
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    installed = {name.lower(): version for name, version in pins}
    for name in NODE:
        installed[name] = locked[f"node_modules/{name}"]["version"]
    installed["firebase-admin/database"] = locked["node_modules/firebase-admin"]["version"]
    assert tried == installed


def test_the_chat_loads_the_version_that_is_tried() -> None:
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    loaded = re.findall("firebasejs/([0-9.]+)/", CHAT.read_text())
    assert set(loaded) == {locked["node_modules/firebase"]["version"]}
