"""The command line of `twistd treedb`, and what is set up before the reactor runs."""

from __future__ import annotations

import gc
import linecache
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from twisted.internet.epollreactor import EPollReactor

from treedbd.config.listening import CannotStart
from treedbd.config.settings import Settings
from treedbd.daemon import curl_command, print_as_sentence
from treedbd.process import freeze_objects, use_monotonic_clock
from treedbd.tap import Options, makeService


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the signals of the tests' own process alone."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def parse(*arguments: str) -> Options:
    options = Options()
    options.parseOptions(arguments)
    return options


def test_only_given_options_become_flags() -> None:
    assert parse().flags == {}
    given = parse("--listen", "tcp:1", "-l", "tcp:2", "--data", "d", "--engine", "memory")
    assert given.flags == {"listen": ["tcp:1", "tcp:2"], "data": "d", "engine": "memory"}
    assert parse("--workers", "1").flags == {"workers": 1}
    origins = ["https://a.example", "http://b.example:1"]
    assert parse("--origin", origins[0], "--origin", origins[1]).flags == {"origin": origins}


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_loss_is_accepted_by_the_flag_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_accepted: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    seen: list[Settings] = []
    monkeypatch.setattr("treedbd.daemon.TreeService", lambda settings, _: seen.append(settings))
    makeService(parse(*["--accept-loss"] * is_accepted))
    assert [settings.accept_loss for settings in seen] == [is_accepted]
    (tmp_path / "treedb.toml").write_text('accept_loss = true\nlisten = ["tcp:1"]')
    with pytest.raises(SystemExit, match="accept_loss is not a key"):
        makeService(parse("--config", "treedb.toml"))


@pytest.mark.parametrize("number", ["65", "0", "-1", "1.0", "many", ""])
def test_the_number_of_workers_is_checked_as_in_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.chdir(tmp_path)
    message = r"^treedb: the command line: workers must be an integer from 1 to 64"
    with pytest.raises(SystemExit, match=message):
        makeService(parse("--workers", number))


def test_the_example_in_the_help_works_in_development_mode(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.search(r"tcp:\S+(?=;)", str(parse()))
    assert example is not None
    makeService(parse("--listen", example[0]))


@pytest.mark.parametrize("arguments", [["--colour"], ["--data"], ["more"]])
def test_a_usage_error_ends_with_one_sentence(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^treedb: .*: see twistd treedb --help\.$"):
        parse(*arguments)


def test_a_setting_that_cannot_be_used_ends_with_one_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^treedb: the command line: engine must be .*\.$"):
        makeService(parse("--engine", "tape"))


def test_a_daemon_without_an_endpoint_does_not_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "treedb.toml").touch()
    with pytest.raises(SystemExit, match=r"^treedb: treedb\.toml: listen names no endpoint: "):
        makeService(parse("--config", "treedb.toml"))


def test_timers_follow_the_monotonic_clock() -> None:
    reactor = EPollReactor()
    use_monotonic_clock(reactor)
    call = reactor.callLater(60, int)
    assert call.getTime() == pytest.approx(time.monotonic() + 60, abs=30)
    call.cancel()


def test_the_daemon_sets_its_clock_before_anything_is_scheduled(
    tmp_path: pathlib.Path,
) -> None:
    program = (
        "import time\n"
        "from treedbd.tap import Options, makeService\n"
        "options = Options()\n"
        "options.parseOptions([])\n"
        "makeService(options)\n"
        "from twisted.internet import reactor\n"
        "assert reactor.seconds is time.monotonic\n"
        "assert not reactor.getDelayedCalls()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert not list(tmp_path.iterdir())


def test_the_curl_command_quotes_any_path() -> None:
    data = pathlib.Path("/it's $HOME")
    urls = ["unix:/s", "https://127.0.0.1:8443", "http://127.0.0.1:9000"]
    words = shlex.split(curl_command(urls, data, is_open=True) or "")
    assert "-H" not in words
    assert words[words.index("--cacert") + 1] == "/it's $HOME/localhost.cert.pem"
    assert words[-1] == "https://localhost:8443/hello.json"


def test_the_curl_command_of_a_plain_endpoint_needs_no_certificate() -> None:
    command = curl_command(["http://127.0.0.1:9000"], pathlib.Path("/d"), is_open=True)
    assert command is not None
    assert "--cacert" not in command


def test_under_rules_the_curl_command_has_the_token_of_an_admin() -> None:
    command = curl_command(["http://127.0.0.1:9000"], pathlib.Path("/d"), is_open=False)
    assert command is not None
    assert "-H 'Authorization: Bearer owner'" in command


def test_without_an_http_url_there_is_no_curl_command() -> None:
    assert curl_command(["unix:/s", "systemd:x"], pathlib.Path("/d"), is_open=True) is None


def test_the_reason_of_a_failed_start_is_printed_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    others: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: others.append(error))
    print_as_sentence(CannotStart)
    sys.excepthook(CannotStart, CannotStart("It is\nlate."), None)
    other = ValueError("other")
    sys.excepthook(ValueError, other, None)
    assert capfd.readouterr().err == "treedb: It is\\nlate.\n"
    assert others == [other]


def test_objects_that_exist_at_the_start_are_excluded_from_garbage_collection() -> None:
    everything = len(gc.get_objects())
    try:
        freeze_objects()
        assert gc.get_freeze_count() > everything // 2
        assert len(gc.get_objects()) < everything // 2
        assert not linecache.cache
    finally:
        gc.unfreeze()
        gc.freeze()  # what the collection has made, again
