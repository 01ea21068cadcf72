"""The prompt, with the keys of a terminal but without one."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Sequence

import pytest
from prompt_toolkit.application import create_app_session, get_app
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.command import PATIENCE_S
from tests.daemon import Daemon
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import parse_url
from treedbd.cli.shell.prompt import (
    BoundedHistory,
    ShellCompleter,
    make_prompt,
    run_prompt,
)
from treedbd.cli.shell.shell import (
    KeyCache,
    ShellSession,
    run_line,
)
from treedbd.tree.types import Path

UP = "\x1b[A"
CTRL_C = "\x03"
CTRL_D = "\x04"
KEYS = ["ada", "alan", "two words"]


class Typist(DummyOutput):
    """Types each text when the line is what it waits for."""

    def __init__(
        self,
        pipe: PipeInput,
        steps: Sequence[tuple[str, str]],
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._pipe = pipe
        self._steps = list(steps)
        self._notice = notice

    def flush(self) -> None:
        line = get_app().current_buffer.text
        self._notice(line)
        if self._steps and line == self._steps[0][0]:
            self._pipe.send_text(self._steps.pop(0)[1])


def read_keys(path: Path, after: str | None) -> list[str]:
    return KEYS if path == ("users",) else []


@pytest.fixture
def session(shared_daemon: Daemon) -> ShellSession:
    """A session at `/users`, without colours."""
    root = parse_url(shared_daemon.http)
    session = ShellSession(HttpClient(), root, ("users",), default_label="demo")
    value = '{"ada": {"age": 36}, "alan": 1, "two words": 2}'
    run_line(session, f"set --silent . {value}")
    return session


def run(
    session: ShellSession,
    capture: pytest.CaptureFixture[bytes],
    *steps: tuple[str, str],
    file: pathlib.Path | None = None,
) -> tuple[list[str], list[str]]:
    """Type keys at a prompt until it ends; return the lines of its output and its sentences."""
    with create_pipe_input() as pipe, create_app_session(pipe, Typist(pipe, steps)):
        run_prompt(session, KeyCache(read_keys), file)
    output, errors = capture.readouterr()
    return output.decode().splitlines(), errors.decode().splitlines()


def test_lines_are_run_until_ctrl_d(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    output, errors = run(session, capsysbinary, ("", f"cd ada\rcat age\r{CTRL_D}"))
    assert (output, errors) == (["36"], [])
    assert session.location == "demo:/users/ada"
    assert make_prompt(session) == "demo:/users/ada> "


def test_an_error_is_a_sentence_and_the_shell_goes_on(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    output, errors = run(session, capsysbinary, ("", "caat\rset a b\rcat alan\rexit\r"))
    assert output == ["1"]
    assert errors[0] == "There is no command caat. Did you mean cat?"
    assert errors[1].endswith("""A JSON string has quotation marks: '"b"'.""")


def test_json_goes_on_until_its_brackets_close(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    keys = 'set --silent alan {\r"x": [1,\r2]\r}\rget alan\rexit\r'
    output, errors = run(session, capsysbinary, ("", keys))
    assert (output, errors) == (['{"x":[1,2]}'], [])


def test_ctrl_c_clears_the_line(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    output, errors = run(session, capsysbinary, ("", f"rm alan{CTRL_C}cat alan\rexit\r"))
    assert (output, errors) == (["1"], [])


def test_tab_completes_a_key(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    steps = [("", "cat tw\t"), ("cat 'two words'", "\r"), ("", "exit\r")]
    output, errors = run(session, capsysbinary, *steps)
    assert (output, errors) == (["2"], [])


def test_one_can_type_while_keys_are_read(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    released = threading.Event()
    waits: list[bool] = []

    def read_slowly(path: Path, after: str | None) -> list[str]:
        if path == session.place:
            pipe.send_text("da/age")
            waits.append(released.wait(PATIENCE_S))
        return KEYS

    def notice(line: str) -> None:
        if line == "cat ada/age":
            released.set()

    with create_pipe_input() as pipe:
        typist = Typist(pipe, [("", "cat a\t"), ("cat ada/age", "\r"), ("", "exit\r")], notice)
        with create_app_session(pipe, typist):
            run_prompt(session, KeyCache(read_slowly), None)
    assert waits == [True]
    assert capsysbinary.readouterr().out == b"36\n"


def test_several_keys_are_offered(session: ShellSession) -> None:
    completer = ShellCompleter(session, KeyCache(read_keys))
    found = completer.get_completions(Document("cat a"), CompleteEvent(completion_requested=True))
    assert [(each.text, each.start_position) for each in found] == [("ada", -1), ("alan", -1)]


def test_the_history_is_that_of_the_last_shell(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "history"
    assert run(session, capsysbinary, ("", "cat alan\rexit\r"), file=file)[0] == ["1"]
    assert list(BoundedHistory(file).load_history_strings()) == ["exit", "cat alan"]
    steps = [("", UP), ("exit", UP), ("cat alan", "\r"), ("", CTRL_D)]
    assert run(session, capsysbinary, *steps, file=file)[0] == ["1"]


def test_without_history_no_file_is_made(
    session: ShellSession,
    capsysbinary: pytest.CaptureFixture[bytes],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run(session, capsysbinary, ("", "cat alan\rexit\r"))[0] == ["1"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "left"), [("y\r", "null"), ("n\r", "36"), ("\r", "36"), (CTRL_C, "36")]
)
def test_rm_asks_before_more_than_one_value_goes(
    session: ShellSession, capsysbinary: pytest.CaptureFixture[bytes], answer: str, left: str
) -> None:
    keys = f"rm --silent ada\r{answer}cat ada/age\rexit\r"
    output, errors = run(session, capsysbinary, ("", keys))
    assert output == [left]
    assert errors == ([] if left == "null" else ["Nothing is removed."])


def test_the_prompt_is_short_and_safe(session: ShellSession) -> None:
    session.place = ("a\x9b", *("x" * 30 for _ in range(5)))
    assert len(make_prompt(session)) < 70
    session.place = ("a\x9b",)
    session.auth = "null"
    assert make_prompt(session) == "demo:/a�> ".replace("> ", " (as)> ")
