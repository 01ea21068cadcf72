"""`treedb run --on`: commands for events, over failures and kills of both sides."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.access import admin, at, write_secret
from tests.command import CommandResult, RunningCommand, result_of, run_command, start
from tests.daemon import Daemon
from tests.system import find_port, wait_until

CONFIG = """
[projects.cli]
secret_files = ["cli.secret"]
databases = "*"
"""
ADMIN = admin("cli")
ON = ("--on", "/orders/$id")
EVENTS = "/.settings/events.json"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with make_daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def make_daemon(folder: pathlib.Path) -> Daemon:
    """Return a daemon that has the same port after each start."""
    write_secret(folder, "cli")
    listen = f"tcp:{find_port()}:interface=127.0.0.1"
    return Daemon(folder, config=CONFIG, listen=[listen])


class Hooked:
    """A database of its own whose orders have a hook, and the folder of its run."""

    def __init__(self, daemon: Daemon, folder: pathlib.Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.log = folder / "log"
        self.cursor = folder / "a.cursor"
        name = re.sub(r"[^a-z0-9]+", "", folder.name.lower())
        self.ns = f"{name[-30:]}--cli"
        self.words = (
            *("run", "--url", f"{daemon.http}/?ns={self.ns}", "--cursor", str(self.cursor)),
        )

    def put(self, key: str, value: Any) -> None:
        path = at(f"/orders/{key}.json", ADMIN, ns=self.ns)
        assert self.daemon.request("PUT", path, json.dumps(value)).status == 200

    def begin(self, *options: str) -> None:
        """Make the hook, and begin there."""
        self.run(*ON, "--once", *options, "--", "true")

    def run(self, *words: str) -> CommandResult:
        """Run to the end."""
        return run_command(*self.words, *words, token=ADMIN, folder=self.folder)

    def start(self, *words: str) -> RunningCommand:
        return RunningCommand(*self.words, *words, token=ADMIN)

    def appending(self, text: str, before: str = "") -> tuple[str, ...]:
        """Return a command that appends a line, of a shell's text, to the log."""
        return ("--", "sh", "-c", f'{before} echo "{text}" >> "$0"', str(self.log))

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def hooked(daemon: Daemon, tmp_path: pathlib.Path) -> Hooked:
    hooked = Hooked(daemon, tmp_path)
    hooked.put("before", 0)
    hooked.begin()
    return hooked


def test_a_command_gets_its_event(hooked: Hooked) -> None:
    key = "a b\"'`(x);ü€"
    hooked.put(quote(key), 1)
    hooked.put(quote("🍐"), {"n": [1, 2]})
    show = ("--", "sh", "-c", 'cat; printf "\\n%s|%s\\n" "$TREEDB_CAPTURE_id" "$TREEDB_PATH"')
    result = hooked.run(*ON, "--once", *show)
    assert (result.status, result.errors) == (0, "")
    first, variables, second, _ = result.output.decode().splitlines()
    assert variables == f"{key}|/orders/{key}"
    event = json.loads(first)
    assert (event["path"], event["captures"], event["after"]) == (f"/orders/{key}", {"id": key}, 1)
    assert json.loads(second)["after"] == {"n": [1, 2]}
    assert hooked.run(*ON, "--once", *show) == (0, b"", "")


@pytest.mark.parametrize("kind", ["created", "updated", "deleted"])
def test_events_of_one_kind_have_a_hook_of_their_own(hooked: Hooked, kind: str) -> None:
    hooked.cursor.unlink()
    hooked.begin(f"--{kind}")
    for value in (1, 2, None, None):
        hooked.put("a", value)
    hooked.run(*ON, f"--{kind}", "--once", *hooked.appending("$TREEDB_KIND $TREEDB_PATH"))
    assert hooked.lines() == [f"{kind} /orders/a"]


def test_another_hook_of_a_name_is_replaced_only_if_that_is_wanted(hooked: Hooked) -> None:
    named = ("--on", "/orders/$key", "--created", "--name", "run-orders-id", "--once")
    refused = hooked.run(*named, "--", "true")
    assert "There is a hook run-orders-id on /orders/$id for written" in refused.error
    assert hooked.run(*named, "--replace", "--", "true").status == 0


def test_events_of_one_path_keep_their_order_over_failures(hooked: Hooked) -> None:
    for value in (1, 2, 3):
        for key in "abc":
            hooked.put(key, value)
    failing = '[ "$TREEDB_ATTEMPT" -gt 1 ] || exit 3;'
    command = hooked.appending("$TREEDB_CAPTURE_id $TREEDB_EVENT_ID", failing)
    result = hooked.run(*ON, "--once", "--concurrency", "3", *command)
    assert result.status == 0
    assert result.errors.count("exit status 3; again in 0.") == 9
    found = [(key, int(event.split("/")[2])) for key, event in map(str.split, hooked.lines())]
    assert len(found) == 9
    for key in "abc":
        numbers = [number for each, number in found if each == key]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 3


def test_an_event_that_always_fails_is_given_up(hooked: Hooked) -> None:
    for value in (1, 2):
        for key in "ab":
            hooked.put(key, value)
    failing = '[ "$TREEDB_PATH" != /orders/a ] || exit 3;'
    command = hooked.appending("$TREEDB_PATH", failing)
    result = hooked.run(*ON, "--once", "--attempts", "1", *command)
    assert result.status == 1
    assert result.errors.endswith(f"treedb: 2 events were given up: see {hooked.cursor}.dead.\n")
    assert hooked.lines() == ["/orders/b"] * 2
    lines = pathlib.Path(f"{hooked.cursor}.dead").read_text().splitlines()
    dead = [json.loads(line) for line in lines]
    assert [(each["end"], each["event"]["after"]) for each in dead] == [
        ("exit status 3", 1),
        ("exit status 3", 2),
    ]


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started(
    hooked: Hooked,
) -> None:
    hooked.put("a", 1)
    command = ("--", "sh", "-c", 'sleep 300 & echo $! > "$0"; wait', str(hooked.log))
    result = hooked.run(*ON, "--once", "--attempts", "1", "--timeout", "0.3", *command)
    assert "not done after 0.3 s (--timeout); given up" in result.errors
    assert result.errors.endswith(f"treedb: 1 event was given up: see {hooked.cursor}.dead.\n")
    (pid,) = hooked.lines()
    wait_until(lambda: not is_running(int(pid)))


def has_ended_by(running: RunningCommand, number: signal.Signals) -> bool:
    """Return whether a command has ended; send it a signal if not."""
    if running.poll() is None:
        running.signal(number)
    return running.poll() is not None


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_cursor_file_is_used_by_one_run(hooked: Hooked) -> None:
    with hooked.start(*ON, "--", "true") as running:
        assert "are run that follow" in running.errors.next()
        refused = hooked.run(*ON, "--", "true")
        assert refused.error == (
            f"Another treedb run uses {hooked.cursor}: stop it, or choose another file by --cursor."
        )


@pytest.mark.parametrize("options", [(), ("--from-now",)])
def test_a_run_on_another_machine_replaces_the_first(
    hooked: Hooked, options: tuple[str, ...]
) -> None:
    with hooked.start(*ON, *hooked.appending("$TREEDB_PATH")) as first:
        assert "are run that follow" in first.errors.next()
        other = ("--cursor", str(hooked.folder / "other"), *ON, "--once", *options)
        assert hooked.run(*other, "--", "true").status == 0
        assert first.wait() == 1
        assert first.errors.rest() == [
            "treedb: Another treedb run reads the events of run-orders-id now, so this one ends."
        ]


def test_a_signal_lets_commands_end(hooked: Hooked) -> None:
    hooked.put("a", 1)
    hooked.put("b", 1)
    go = hooked.folder / "go"
    os.mkfifo(go)
    command = hooked.appending("$TREEDB_PATH", f'echo began >> "$0"; read x < "{go}";')
    with hooked.start(*ON, "--quiet", *command) as running:
        wait_until(lambda: hooked.lines() == ["began"])
        running.signal(signal.SIGTERM)
        go.write_text("x\n")
        assert running.wait() == 0
        assert running.errors.rest() == []
    assert hooked.lines() == ["began", "/orders/a"]
    hooked.run(*ON, "--once", *hooked.appending("$TREEDB_PATH"))
    assert hooked.lines() == ["began", "/orders/a", "/orders/b"]


def test_a_second_signal_kills_commands(hooked: Hooked) -> None:
    hooked.put("a", 1)
    command = ("--", "sh", "-c", 'sleep 300 & echo $! >> "$0"; wait', str(hooked.log))
    with hooked.start(*ON, *command) as running:
        wait_until(hooked.lines)
        wait_until(lambda: has_ended_by(running, signal.SIGINT))  # two at once would be one
        assert running.wait() == 0
    (pid,) = hooked.lines()
    wait_until(lambda: not is_running(int(pid)))
    hooked.run(*ON, "--once", *hooked.appending("$TREEDB_PATH"))
    assert hooked.lines()[1:] == ["/orders/a"]


def test_a_place_that_is_lost_ends_a_run(hooked: Hooked) -> None:
    hooked.put("a", 1)
    cursor = at("/.settings/cursors.json", ADMIN, ns=hooked.ns, cursor="hook-run-orders-id")
    assert hooked.daemon.request("DELETE", cursor).status == 200
    command = hooked.appending("$TREEDB_PATH")
    lost = hooked.run(*ON, "--once", *command)
    assert "410 place_lost: The place of run-orders-id in the log is lost" in lost.error
    assert lost.error.endswith("start it with --from-now.")
    assert hooked.run(*ON, "--once", "--from-now", *command).status == 0
    hooked.put("b", 1)
    assert hooked.run(*ON, "--once", *command).status == 0
    assert hooked.lines() == ["/orders/b"]


def test_a_run_leaves_no_hook_in_a_database_that_was_made_anew(hooked: Hooked) -> None:
    request, log = hooked.daemon.request, hooked.log
    hooked.put("a", 1)
    with hooked.start(*ON, *hooked.appending("$TREEDB_PATH")) as running:
        wait_until(log.exists)
        where = at("/.settings/database.json", ADMIN, ns=hooked.ns, confirm=hooked.ns)
        assert request("DELETE", where).status == 200
        hooked.put("b", 1)
        assert running.wait() == 1
    hooks = request("GET", at("/.settings/webhooks.json", ADMIN, ns=hooked.ns))
    assert json.loads(hooks.body) == {"webhooks": []}


def test_a_hook_that_was_removed_is_made_again_and_that_is_said(hooked: Hooked) -> None:
    removed = hooked.daemon.request("DELETE", at(EVENTS, ADMIN, ns=hooked.ns, name="run-orders-id"))
    assert removed.status == 200
    result = hooked.run(*ON, "--once", "--", "true")
    assert (result.status, result.output) == (0, b"")
    assert "The hook run-orders-id was not there any more, and is made again" in result.errors


def test_a_file_of_another_database_is_refused(hooked: Hooked, daemon: Daemon) -> None:
    other = Hooked(daemon, hooked.folder / "else")
    other.folder.mkdir()
    other.put("a", 1)
    refused = other.run("--cursor", str(hooked.cursor), *ON, "--once", "--", "true")
    assert "a.cursor is of the hook run-orders-id of cli/" in refused.error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--", "true"), "required: --on"),
        ((*ON,), "required: COMMAND"),
        (("--on", "/a/$b/$b", "--", "true"), "Two captures have the name b."),
        ((*ON, "--concurrency", "0", "--", "true"), "--concurrency"),
        ((*ON, "--timeout", "0", "--", "true"), "--timeout"),
        ((*ON, "--name", "A", "--", "true"), "--name"),
        (
            (*ON, "--url", "http://localhost:1/orders", "--", "true"),
            "argument --url: must name a database, not a path in it",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(words: tuple[str, ...], why: str) -> None:
    result = run_command("run", "--url", "http://localhost:1/", *words)
    assert result.status == 2
    assert why in result.errors


@pytest.mark.parametrize(
    ("on", "hint"),
    [
        ("/orders/{id}", "{id} in --on is a key of just that name: $id is any key."),
        ("/orders/*", "* in --on is a key of just that name: $key is any key."),
        ("/{a}/:b/c", "{a} in --on is a key of just that name: $a is any key."),
        ("/orders/$id/lines", ""),
        ("/orders/a:b{c}", ""),
    ],
)
def test_a_key_that_looks_like_a_capture_is_noted(hooked: Hooked, on: str, hint: str) -> None:
    result = hooked.run("--cursor", str(hooked.folder / "b"), "--on", on, "--once", "--", "true")
    assert result.status == 0
    assert result.errors == (f"treedb: {hint}\n" if hint else "")


def test_a_message_has_no_control_characters(hooked: Hooked) -> None:
    hooked.put("a%C2%85b%C2%9B31m", 1)
    result = hooked.run(*ON, "--once", "--attempts", "1", "--", "false")
    assert "treedb: /orders/a\ufffdb\ufffd31m created (" in result.errors


def test_a_command_that_does_not_exist_is_refused(hooked: Hooked) -> None:
    assert hooked.run(*ON, "--", "./none").error == "./none is not a command that can be run."


KILLED: Final = """
import os, signal, sys
from treedbd.cli.main import main
from treedbd.cli.running.children import Guard
Guard.add = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main(sys.argv[1:]))
"""


def test_a_command_does_not_begin_before_it_is_guarded(hooked: Hooked) -> None:
    hooked.put("a", 1)
    words = (*hooked.words, *ON, *hooked.appending("$TREEDB_ATTEMPT"))
    killed = result_of(start(words, ADMIN, hooked.folder, program=KILLED))
    assert killed.status == -signal.SIGKILL
    hooked.put("a", 2)
    command = hooked.appending("$TREEDB_ATTEMPT")
    assert hooked.run(*ON, "--once", *command).status == 0
    assert hooked.lines() == ["1", "1"]


def test_each_event_is_run_in_order_over_kills_of_both_sides(tmp_path: pathlib.Path) -> None:
    keys, rounds = "abcdefgh", 6
    with make_daemon(tmp_path) as daemon:
        hooked = Hooked(daemon, tmp_path / "killed")
        hooked.folder.mkdir()
        hooked.put("before", 0)
        hooked.begin()
        command = hooked.appending("$TREEDB_PATH $TREEDB_EVENT_ID")
        words = (*ON, "--quiet", "--concurrency", "4", *command)
        running = hooked.start(*words)
        for number in range(rounds):
            for value in range(5):
                for key in keys:
                    hooked.put(key, [number, value])
            some = len(hooked.lines())
            wait_until(lambda some=some: len(hooked.lines()) > some)  # type: ignore[misc]
            if number % 3 == 1:
                daemon.kill()
                daemon.start()
            elif number % 3 == 2:
                running.close()
                daemon.kill()
                running = hooked.start(*words)  # which waits for the daemon
                daemon.start()
            else:
                running.close()
                running = hooked.start(*words)
        expected = rounds * 5 * len(keys)
        wait_until(lambda: len(set(hooked.lines())) == expected)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        running.close()
    check_order(hooked.lines(), keys, rounds * 5, kills=4, at_once=4)


def check_order(lines: list[str], keys: str, events: int, *, kills: int, at_once: int) -> None:
    """Check that each event was run, that only those under way were repeated, and the order."""
    found = [(path, int(event.split("/")[2])) for path, event in map(str.split, lines)]
    for key in keys:
        numbers = [number for path, number in found if path == f"/orders/{key}"]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == events
    assert len(found) - len(set(found)) <= kills * at_once
