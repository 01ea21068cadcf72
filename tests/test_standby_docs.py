"""The steps of `docs/standby.md`, in their order, with two daemons on this machine."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shlex
from collections.abc import Callable

from tests.daemon import SERVE, Daemon
from tests.pages import Check, Shell, check_blocks, matches, read_blocks
from tests.standby.pair import until
from tests.system import find_port


def daemon_of(folder: pathlib.Path, line: str) -> Daemon:
    """Return the daemon of a line of the page."""
    words = shlex.split(line.removesuffix("&"))
    assert words[:2] == ["treedb", "serve"]
    daemon = Daemon(folder, listen=[], program=[*SERVE, *words[2:]])
    at = daemon._command.index("--data")
    del daemon._command[at : at + 2]
    return daemon


def test_the_steps_of_the_page_can_be_followed(tmp_path: pathlib.Path) -> None:
    ports = {"9001": str(find_port()), "9002": str(find_port())}

    def adapt(text: str) -> str:
        return re.sub(r"9001|9002", lambda found: ports[found[0]], text)

    def no_check(check: Check) -> Check:
        return lambda shown: check(adapt(shown))

    with contextlib.ExitStack() as stack:
        shell = stack.enter_context(Shell(tmp_path, adapt))
        daemons: list[Daemon] = []

        def write(name: str) -> Callable[[str], Check]:
            def write_file(text: str) -> Check:
                (tmp_path / name).write_text(adapt(text))
                return no_check(lambda _: None)

            return write_file

        def start(text: str) -> Check:
            made = [daemon_of(tmp_path, line) for line in text.splitlines()]
            daemons.extend(map(stack.enter_context, made))
            return no_check(lambda _: None)

        def run_soon(text: str) -> Check:
            def check(shown: str) -> None:
                def is_shown() -> bool:
                    with contextlib.suppress(AssertionError):
                        shell.run(text)
                        return matches(adapt(shown), shell.output)
                    return False

                until(is_shown, shown)

            return check

        def bring_back(text: str) -> Check:
            stop, change, line = text.splitlines()
            assert stop == "kill %1; wait %1"
            assert daemons[0].stop() == 0
            shell.run(change)
            return start(line)

        check_blocks(
            read_blocks("standby.md"),
            {
                "toml first": write("first.toml"),
                "toml standby": write("standby.toml"),
                "sh": lambda text: no_check(shell.run(text)),
                "sh start": start,
                "sh soon": run_soon,
                "sh fails": lambda text: no_check(shell.run(f"{text.rstrip()} || true")),
                "sh back": bring_back,
            },
        )
    assert len(daemons) == 3
