"""`docs/archive.md`: its configurations, its table of keys, and its drill, word by word."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Final

import attrs
import pytest

from tests.archive.archived import CONFIG, put, read_back
from tests.daemon import Daemon
from tests.pages import DOCS, read_blocks
from treedbd.archive.index import Archive
from treedbd.archive.places import open_place
from treedbd.archive.sealing import make_key, read_key
from treedbd.config.settings import ArchiveSettings, load_settings

PAGE: Final = (DOCS / "archive.md").read_text()
FOLDER: Final = "/mnt/second-disk/treedb"
DATA: Final = "/var/lib/treedb"
CONFIGURATION: Final = "/etc/treedb"
PLAYED: Final = {
    "systemctl": 'echo "$@" >> "$PLAYED"',
    "chown": 'test "$1 $2" = "-R treedb:treedb" && test -d "$3"',
    "treedb": f'exec "{sys.executable}" -m treedbd.cli "$@"',
}
"""What plays the commands of the system: their names, and their lines of shell."""


def test_the_configurations_are_valid(tmp_path: pathlib.Path) -> None:
    places = []
    for block in read_blocks("archive.md", "toml"):
        (tmp_path / "treedb.toml").write_text(block.text)
        places.append(load_settings(tmp_path / "treedb.toml", {}, tmp_path).archive.to)
    assert places == [FOLDER, "s3://my-bucket/treedb", "s3://my-bucket/treedb"]


def test_the_table_has_all_keys_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", PAGE, re.MULTILINE))
    shown = {key: default for keys, default in rows.items() for key in keys[1:-1].split("`, `")}
    defaults = {each.name: each.default for each in attrs.fields(ArchiveSettings)}
    assert shown.keys() >= defaults.keys()
    for key in ("every_s", "base_every_s", "keep_s", "keep_bases"):
        assert float(shown[key]) == defaults[key]


@pytest.fixture
def paths(tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
    """The paths of the page, and what is in their place."""
    paths = {FOLDER: tmp_path / "disk", DATA: tmp_path / "data", CONFIGURATION: tmp_path / "etc"}
    for name in (FOLDER, CONFIGURATION):
        paths[name].mkdir()
    (tmp_path / "played").mkdir()
    for name, line in PLAYED.items():
        program = tmp_path / "played" / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    return paths


def in_place(text: str, paths: dict[str, pathlib.Path]) -> str:
    """Return a text of the page with the paths of this machine."""
    for path, ours in paths.items():
        text = text.replace(path, os.fspath(ours))
    return text


def test_the_drill_brings_back_what_the_machine_had(
    tmp_path: pathlib.Path, paths: dict[str, pathlib.Path]
) -> None:
    etc = paths[CONFIGURATION]
    (etc / "archive.key").touch(0o600)
    (etc / "archive.key").write_text(make_key())
    text = f'data = "{DATA}"\n{CONFIG}[archive]\nto = "{FOLDER}"\nkey_file = "archive.key"\n'
    config = in_place(text, paths)
    (etc / "treedb.toml").write_text(config)
    shutil.copy(etc / "archive.key", tmp_path)
    with Daemon(tmp_path, config=config, listen=["tcp:0:interface=127.0.0.1"]) as daemon:
        for number in range(20):
            put(daemon, f"/k{number}.json", number)
        put(daemon, "/.settings/rules.json", {"rules": {".read": True}})
        assert daemon.stop() == 0
        daemon.start()  # after which there is a base
        daemon.await_line("A base of app is in the archive")
        put(daemon, "/more.json", 1)
        served = daemon.request("GET", "/.json").json
        assert daemon.stop() == 0
        shutil.rmtree(paths[DATA])
        follow(tmp_path, paths)
        daemon.start()
        assert daemon.request("GET", "/.json").json == served
        put(daemon, "/after.json", 1)
        assert daemon.request("PUT", "/k0.json", "1").status == 403  # by the rules that it had
        assert daemon.stop() == 0
    archive = Archive(open_place(os.fspath(paths[FOLDER])), read_key(etc / "archive.key"))
    stretch, found = read_back(archive, "app/default")
    assert found == {**served, "after": 1}
    assert stretch.first == 0  # the archive goes on where it was


def follow(folder: pathlib.Path, paths: dict[str, pathlib.Path]) -> None:
    """Run the commands of the drill one after the other."""
    blocks = read_blocks("archive.md", "sh")
    assert len(blocks) == 3
    played = folder / "commands"
    path = f"{folder / 'played'}:{os.environ['PATH']}"
    for block in blocks:
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", in_place(block.text, paths)],
            env={**os.environ, "PATH": path, "PLAYED": os.fspath(played)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (block.text, done)
    assert played.read_text() == "start treedb\n"
