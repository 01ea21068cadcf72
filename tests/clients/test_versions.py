"""`docs/clients.md` names the versions that these tests install."""

from __future__ import annotations

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "clients.md"
NODE = ("firebase", "@firebase/database", "firebase-tools", "geofire", "rxfire", "vuefire")
BY_HAND = re.compile(r"[0-9.]+, by hand on \d{4}-\d\d-\d\d")
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


def test_what_is_not_installed_says_that_it_was_run_by_hand_or_not_at_all() -> None:
    table = PAGE.read_text().split("\n\n")[3].splitlines()
    versions = [row.split("|")[2].strip() for row in table[2:]]
    others = [version for version in versions if not re.fullmatch("[0-9.]+", version)]
    by_hand = [version for version in others if BY_HAND.fullmatch(version)]
    assert by_hand
    assert {*others} - {*by_hand} == {"none", "see there", ""}


def test_the_chat_loads_the_version_that_is_tried() -> None:
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    loaded = re.findall("firebasejs/([0-9.]+)/", CHAT.read_text())
    assert set(loaded) == {locked["node_modules/firebase"]["version"]}


def test_the_page_of_functions_names_the_versions_that_are_tried() -> None:
    page = (PAGE.parent / "functions.md").read_text()
    tried = re.findall(r"^\| `([^`]+)`[^|]*\| ([0-9.]+) \|$", page, re.MULTILINE)
    locked = json.loads((HERE / "package-lock.json").read_text())["packages"]
    assert len(tried) == 4
    assert dict(tried) == {name: locked[f"node_modules/{name}"]["version"] for name, _ in tried}
