"""Every line of `docs/board.md`: its programs under MicroPython, its commands in a shell.

MicroPython is that for Linux, with the heap of a board. What only a board has, pins and Wi-Fi, is
played by the modules in `tests/board`; `mpremote` is played by a script.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import trustme

from tests.daemon import SERVE, Daemon
from tests.micropython import HEAP, STAND_INS, find_micropython
from tests.pages import Check, Shell, check_blocks, no_output, read_blocks
from tests.system import find_port

BLOCKS: Final = read_blocks("board.md")
UNNAMED: Final = "127.0.0.2"
"""An address of this machine that its certificate does not name."""

MPREMOTE: Final = """#!/bin/sh
set -eu
verb=$1; shift
case $verb in
cp) while [ "$1" != : ]; do cp "$1" "{board}/"; shift; done ;;
run) cd "{board}"; MICROPYPATH=.frozen:{modules} exec {micropython} -X heapsize={heap} "$1" ;;
esac
"""


class Desk:
    """A computer with a daemon, and a board beside it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Prepare a daemon for the local network, and an empty board."""
        self.folder = folder
        self.board = folder / "board"
        self.board.mkdir()
        self.port = find_port()
        listen = [f"ssl:{self.port}", "tcp:0:interface=127.0.0.1"]
        self.daemon = Daemon(folder, listen=listen, arguments=["--lan"], program=SERVE)
        (folder / "treedb-data").symlink_to(self.daemon.data)
        self.shell = Shell(folder, self._adapt, self._add_mpremote())
        self.kinds = {
            "sh daemon": self._serve,
            "text stop": self._stop,
            "sh": self.shell.run,
            "sh board": self.shell.start,
            "sh follow": self.shell.start,
            "text board": self._await("mpremote run"),
            "text watched": self._await("treedb watch"),
            **{f"{each} {name}": self._save(name) for each, name in self._files()},
        }

    def close(self) -> None:
        self.shell.close()
        self.daemon.close()

    @staticmethod
    def _files() -> list[tuple[str, str]]:
        python = [("python", "treedb.py"), ("python", "main.py")]
        return [("json", "rules.json"), ("json", "config.json"), *python]

    def _adapt(self, text: str) -> str:
        return text.replace("laptop.local", "localhost").replace("8443", str(self.port))

    def _add_mpremote(self) -> pathlib.Path:
        programs = self.folder / "programs"
        programs.mkdir()
        words = {"board": self.board, "modules": STAND_INS, "heap": HEAP}
        script = MPREMOTE.format(micropython=find_micropython(), **words)
        (programs / "mpremote").write_text(script)
        (programs / "mpremote").chmod(0o755)
        return programs

    def _save(self, name: str) -> Callable[[str], Check]:
        def save(text: str) -> Check:
            text = self._adapt(text)
            if name == "config.json":
                config = json.loads(text)
                assert config["token"] == "…"
                text = json.dumps(
                    {**config, "token": (self.folder / "token.txt").read_text().rstrip()}
                )
            (self.folder / name).write_text(text)
            return no_output

        return save

    def _serve(self, text: str) -> Check:
        assert text == "treedb serve --lan\n"
        self.daemon.start()
        return no_output

    def _stop(self, text: str) -> Check:
        assert self.daemon.stop() == 0, text
        return no_output

    def _await(self, command: str) -> Callable[[str], Check]:
        def find(text: str) -> Check:
            self.shell.await_lines(command, text)
            return no_output

        return find


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_every_line_does_what_the_page_says(desk: Desk) -> None:
    assert len(BLOCKS) > 20
    check_blocks(BLOCKS, desk.kinds)


def prepare(desk: Desk) -> None:
    """Do what the page says, up to the files on the board."""
    end = next(at for at, block in enumerate(BLOCKS) if block.kind == "sh board")
    check_blocks(BLOCKS[:end], desk.kinds)


def check_nothing_is_sent(desk: Desk) -> None:
    """Run the program of the board, which must fail to send and to receive."""
    (block,) = (block for block in BLOCKS if block.kind == "sh board")
    desk.shell.start(block.text)
    desk.shell.await_lines("mpremote run", "settings: …\nreading: …\nsettings: …")
    desk.shell.run('treedb get "$URL/boards/desk" --shallow --cacert "$AUTHORITY"')
    assert desk.shell.output == '{"settings":true}'


def test_the_board_sends_nothing_to_a_daemon_of_another_authority(desk: Desk) -> None:
    prepare(desk)
    trustme.CA().cert_pem.write_to_path(desk.folder / "other.pem")
    desk.shell.run("openssl x509 -in other.pem -outform DER -out authority.der")
    check_nothing_is_sent(desk)


def test_the_board_sends_nothing_to_a_daemon_of_another_name(desk: Desk) -> None:
    prepare(desk)
    file = desk.folder / "config.json"
    file.write_text(file.read_text().replace("localhost", UNNAMED))
    check_nothing_is_sent(desk)
