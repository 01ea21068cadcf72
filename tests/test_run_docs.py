"""Every line of the first part of `docs/run.md`: thumbnails by `treedb run`."""

from __future__ import annotations

import base64
import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from tests.daemon import SERVE, Daemon
from tests.pages import DOCS, Check, Shell, check_blocks, no_output, read_blocks
from treedbd.cli.parser import make_parser
from treedbd.cli.running import link, window
from treedbd.cli.running.command import GRACE_S, USUAL_TIMEOUT_S
from treedbd.limits import KIB, HookLimits

BLOCKS: Final = read_blocks("run.md")
PAGE: Final = (DOCS / "run.md").read_text()


class Reader:
    """A reader who follows the page."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.daemon = Daemon(folder, program=SERVE)
        (folder / "treedb-data").symlink_to(self.daemon.data)
        self.shell = Shell(folder)
        self.kinds = {
            "sh daemon": self._serve,
            "sh": self.shell.run,
            "sh run": self.shell.start,
            "python thumbnail.py": self._save,
            "text run": self._await,
            "text interrupt": self.shell.interrupt,
        }

    def close(self) -> None:
        self.shell.close()
        self.daemon.close()

    def _serve(self, text: str) -> Check:
        assert text == "treedb serve\n"
        self.daemon.start()
        return no_output

    def _save(self, text: str) -> Check:
        (self.folder / "thumbnail.py").write_text(text)
        return no_output

    def _await(self, text: str) -> Check:
        self.shell.await_lines("treedb run", text)
        return no_output


@pytest.fixture
def reader(tmp_path: pathlib.Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_every_line_does_what_the_page_says(reader: Reader) -> None:
    assert len(BLOCKS) > 8
    end = next(at for at, block in enumerate(BLOCKS) if block.kind == "text interrupt")
    check_blocks(BLOCKS[:end], reader.kinds)
    reader.shell.run("treedb get /thumbs/sky")
    png = base64.b64decode(json.loads(reader.shell.output))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (64, 48)
    check_blocks(BLOCKS[end:], reader.kinds)


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    assert f"more than {HookLimits().value_bytes // KIB} KiB" in PAGE
    assert f"until {window.MOST_EVENTS} events wait" in PAGE
    assert f"of its group ({USUAL_TIMEOUT_S:.0f})" in PAGE
    assert (GRACE_S, link.REPORT_S) == (10.0, 1.0)


def test_the_page_has_every_option() -> None:
    commands = make_parser()._subparsers
    assert commands is not None
    (choices,) = (action.choices for action in commands._group_actions if action.choices)
    run = dict(choices)["run"]
    run.load()
    common = {"--project", "--token-file", "--cacert", "--config", "--data", "--help"}
    names = {name for action in run._actions for name in action.option_strings if name[:2] == "--"}
    assert [name for name in sorted(names - common) if name not in PAGE] == []
