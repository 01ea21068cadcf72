"""`docs/deployment.md`: its configurations, its files, and what it says of the units and limits."""

from __future__ import annotations

import pathlib
import re
import subprocess

from tests.daemon import Daemon
from tests.pages import DOCS, read_blocks
from tests.sandbox import read_unit
from tests.test_systemd_unit import UNIT, exposure_of
from treedbd.config.settings import load_settings
from treedbd.http1.proxies import MAX_BINARY_BYTES

PAGE = (DOCS / "deployment.md").read_text()
CONF = DOCS.parent / "conf"


def test_the_configurations_are_valid(tmp_path: pathlib.Path) -> None:
    passed, proxied = read_blocks("deployment.md", "toml")
    file = tmp_path / "treedb.toml"
    file.write_text(passed.text)
    (endpoint,) = load_settings(file, {}, tmp_path).listen
    assert (endpoint.is_passed, endpoint.is_secure) == (True, True)
    file.write_text(proxied.text)
    (endpoint,) = load_settings(file, {}, tmp_path).listen
    assert (endpoint.is_proxied, endpoint.is_secure, endpoint.is_loopback) == (True, True, True)


def test_the_files_that_it_names_are_there_and_every_file_for_deployment_is_named() -> None:
    named = set(re.findall(r"conf/([a-zA-Z.]+\w)", PAGE))
    assert {name for name in named if not (CONF / name).exists()} == set()
    assert named >= {each.name for each in CONF.glob("treedb.*") if each.suffix != ".toml"}
    assert named >= {"Containerfile", "compose.yaml"}


def test_the_exposure_that_it_names_is_that_of_the_unit() -> None:
    (named,) = re.findall(r"an exposure of ([0-9.]+) on", PAGE)
    assert float(named) == exposure_of(UNIT)
    assert "MemoryDenyWriteExecute" not in read_unit(UNIT)


def test_the_bound_of_a_header_is_the_one_that_it_names() -> None:
    assert "at most 4 KiB" in PAGE
    assert MAX_BINARY_BYTES == 4096


def test_the_error_of_a_socket_that_was_not_passed_is_as_shown(tmp_path: pathlib.Path) -> None:
    (shown,) = re.findall(
        r"^    (treedb: .*systemd:https cannot be opened .*)$", PAGE, re.MULTILINE
    )
    config = 'listen = ["systemd:https"]\n'
    done = Daemon(tmp_path, config=config, listen=[]).run()
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("treedb: ")]
    assert line == shown.replace("/etc/treedb/treedb.toml", "treedb.toml")


def test_haproxy_accepts_the_configuration_that_it_shows(tmp_path: pathlib.Path) -> None:
    (block,) = re.findall(r"\n\n((?:    .*\n)*    +server treedb .*\n)", PAGE)
    text = re.sub("(?m)^    ", "", block)
    assert "send-proxy-v2" in text
    (tmp_path / "haproxy.cfg").write_text(text)
    command = ["haproxy", "-c", "-q", "-f", str(tmp_path / "haproxy.cfg")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
