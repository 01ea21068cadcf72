from __future__ import annotations

import os
import pathlib

import pytest

from treedbd.config.values import ConfigError
from treedbd.workers.protocol import ListeningSocket, SettingsSource, WorkerStart, read_start

CONFIG = b'[projects.shop]\ndatabases = ["default"]\n'


def test_a_worker_reads_what_its_parent_has_written() -> None:
    source = SettingsSource("a.toml", {"workers": 2, "listen": ["tcp:1"]}, "/x", b"\xff", True)
    start = WorkerStart(1, 0, 2, True, b"s", source, (8,), (ListeningSocket(9, 2),))
    descriptor = start.write()
    assert read_start(descriptor) == start


def test_a_worker_that_starts_again_has_the_settings_of_the_start(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "t.toml"
    file.write_bytes(CONFIG)
    source = SettingsSource("t.toml", {"workers": 2}, str(tmp_path)).read()
    file.write_bytes(CONFIG.replace(b"shop", b"other"))
    assert list(source.load().projects) == ["shop"]
    assert list(source.read().load().projects) == ["other"]


def test_a_file_that_is_gone_is_an_error_only_at_the_start(tmp_path: pathlib.Path) -> None:
    source = SettingsSource("t.toml", {}, str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        source.read().load()
    (tmp_path / "t.toml").write_bytes(CONFIG)
    source = source.read()
    os.unlink(tmp_path / "t.toml")
    assert list(source.read().load().projects) == ["shop"]


def test_accepted_loss_is_kept(tmp_path: pathlib.Path) -> None:
    assert SettingsSource(None, {}, str(tmp_path), accept_loss=True).load().accept_loss
