"""Slow clients: slowhttptest keeps connections open as long as it can, in three ways.

It sends heads and bodies, and reads responses, a few bytes a second, over TLS and without. The
deadlines of the daemon are a few seconds here.
"""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.daemon import Daemon

DEADLINES: Final = """
default_project = "demo"
[limits]
head_s = 2
body_s = 2
body_bytes_per_s = 1_000_000
write_stalled_s = 2
read_bytes_per_s = 1_000_000
linger_s = 1
[projects.demo]
rules_file = "rules.json"
"""
CONNECTIONS: Final = 20
LAST_S: Final = 120
"""When slowhttptest would give up: only if the daemon keeps connections beyond their deadlines."""
# It notices that a connection is closed when it has read all that it has, of which OpenSSL may hold
# a record of 16 KiB: so it reads 4 KiB a second.
ATTACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "header": ("-H", "-u", "{url}/a.json"),
    "body": ("-B", "-t", "PUT", "-s", "8192", "-x", "10", "-u", "{url}/a.json"),
    "read": ("-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "4096", "-u", "{url}/large.json"),
}
SCHEMES: Final = ("http", "https")


class Attacks:
    """All attacks, over both protocols, against one daemon at the same time."""

    def __init__(self, daemon: Daemon, folder: pathlib.Path) -> None:
        """Start them; meanwhile a good client reads and writes, and must succeed each time."""
        self.output: dict[tuple[str, str], str] = {}
        self.good: list[int] = []
        running = {
            (name, scheme): self._start(folder, name, getattr(daemon, scheme))
            for name in ATTACKS
            for scheme in SCHEMES
        }
        try:
            while any(each.poll() is None for each in running.values()):
                self.good.append(daemon.request("PUT", "/good.json", "1", secure=True).status)
                self.good.append(daemon.request("GET", "/good.json").status)
            for key, process in running.items():
                self.output[key] = process.communicate()[0]
        finally:
            for process in running.values():
                process.kill()
                process.wait()

    def _start(self, folder: pathlib.Path, name: str, url: str) -> subprocess.Popen[str]:
        often = ("-c", str(CONNECTIONS), "-r", str(CONNECTIONS), "-i", "1", "-p", "60")
        attack = [each.format(url=url) for each in ATTACKS[name]]
        return subprocess.Popen(
            ["slowhttptest", *often, "-l", str(LAST_S), *attack],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacks]:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "rules.json").write_text('{"rules": {".read": true, ".write": true}}')
    with Daemon(folder, config=DEADLINES) as daemon:
        # More than the buffers of both ends take.
        large = '{"a":"%s"}' % ("x" * 8_000_000)
        assert daemon.request("PUT", "/large.json?print=silent", large).status == 204
        yield Attacks(daemon, folder)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_slow_connection_outlives_its_deadline(attacks: Attacks, name: str, scheme: str) -> None:
    assert "No open connections left" in attacks.output[name, scheme]


def test_a_good_client_is_served_meanwhile(attacks: Attacks) -> None:
    assert set(attacks.good) == {200}
