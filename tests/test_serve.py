"""`treedb serve` as a user meets it: the daemon without twistd's command line."""

from __future__ import annotations

import contextlib
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from tests.command import run_command
from tests.daemon import SERVE, TWISTD, Daemon
from tests.fork_server import run_program
from treedbd.cli.parser import make_parser
from treedbd.tap import Options

PROJECT = pathlib.Path(__file__).parent.parent
LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = (8443, 9000)
CONFIG = 'default_project = "shop"\n[projects.shop]\n'


def run_serve(*flags: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run a daemon that cannot start."""
    return run_program([*SERVE, *flags], folder, 60)


@contextlib.contextmanager
def default_ports_in_use() -> Iterator[None]:
    """Use the ports of development mode, unless another program does already."""
    with contextlib.ExitStack() as stack:
        for port in DEFAULT_PORTS:
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server((LOOPBACK, port)))
        yield


@pytest.mark.parametrize("flags", [[], ["--dev"], ["--dev", "--workers", "2"]])
def test_it_serves_in_development_mode_and_ends_with_status_0(
    tmp_path: pathlib.Path, flags: list[str]
) -> None:
    with Daemon(tmp_path, arguments=flags, program=SERVE) as daemon:
        assert daemon.request("PUT", "/a.json", "1", secure=True).status == 200
        assert daemon.request("GET", "/a.json").body == b"1"
        assert "Development mode" in daemon.log
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log
    assert not list(tmp_path.glob("*.pid"))


def test_it_serves_a_configuration_and_reloads_it_on_sighup(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, config=CONFIG, program=SERVE) as daemon:
        assert "Development mode" not in daemon.log
        assert daemon.request("GET", "/.health").status == 200
        daemon.signal(signal.SIGHUP)
        daemon.await_line("The reload of .* is done")
        daemon.signal(signal.SIGINT)
        assert daemon.wait() == 0


def test_the_configuration_may_precede_the_command(tmp_path: pathlib.Path) -> None:
    (tmp_path / "it.toml").write_text("lissten = 1")
    command = [sys.executable, "-m", "treedbd", "--config", "it.toml", "serve"]
    done = run_program(command, tmp_path, 60)
    assert done.returncode == 1
    assert done.stderr.startswith("treedb: it.toml: lissten is not a key (did you mean listen?)")


def test_the_log_goes_to_a_file_and_the_ready_line_to_standard_output(
    tmp_path: pathlib.Path,
) -> None:
    flags = ["--logfile", "the.log"]
    with Daemon(tmp_path, arguments=flags, program=SERVE) as daemon:
        assert re.fullmatch(r"treedb ready \S+ \S+\n", daemon.log)
        assert "Development mode" in (tmp_path / "the.log").read_text()


@pytest.mark.parametrize("reactor", ["select", "asyncio"])
def test_the_reactor_can_be_chosen(tmp_path: pathlib.Path, reactor: str) -> None:
    with Daemon(tmp_path, arguments=["--reactor", reactor], program=SERVE) as daemon:
        assert daemon.request("PUT", "/a.json", "1").status == 200
        assert re.search(rf"reactor class: \S*{reactor}", daemon.log, re.IGNORECASE)


def test_the_log_can_be_written_by_an_observer_of_the_users_own(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from twisted.logger import jsonFileLogObserver\n"
        "def observer():\n"
        "    return jsonFileLogObserver(open('log.json', 'a'), '')\n"
    )
    flags = ["--logger", "mine.observer"]
    with Daemon(tmp_path, arguments=flags, program=SERVE) as daemon:
        assert daemon.stop() == 0
    assert '"log_namespace": "treedbd.daemon.Daemon"' in (tmp_path / "log.json").read_text()


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--workrs", "2"], 2, ["unknown options: --workrs.", "Did you mean --workers?"]),
        (["--zzz"], 2, ["unknown options: --zzz\n"]),
        (["more"], 2, ["too many arguments"]),
        (["--dev", "--config", "x.toml"], 2, ["--dev is development mode", "leave out --dev or"]),
        (["--reactor", "steam"], 2, ["'steam'"]),
        (["--logger", "no.such"], 2, ["no.such"]),
        (["--logfile", "no/such/file"], 1, ["no/such/file", "No such file", "--logfile"]),
        (["--config", "missing.toml"], 1, ["missing.toml", "No such file"]),
        (["--engine", "tape"], 1, ["engine", "sqlite"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    tmp_path: pathlib.Path, flags: list[str], status: int, words: list[str]
) -> None:
    done = run_serve(*flags, folder=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert [word for word in words if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_twistd_knows_the_same_flags_and_hints_at_them(tmp_path: pathlib.Path) -> None:
    listed = {f"--{name.removesuffix('=')}" for name in Options().longOpt} - {"--version"}
    assert {"--dev", "--workers", "--listen"} < listed
    help_text = run_command("serve", "--help").text
    assert {flag for flag in listed if flag not in help_text} == set()
    done = Daemon(tmp_path, listen=[], arguments=["--workrs"]).run()
    assert done.stderr == (
        "treedb: option --workrs not recognized (did you mean '--workers'?): "
        "see twistd treedb --help.\n"
    )
    done = Daemon(tmp_path, config=CONFIG, arguments=["--dev"]).run()
    assert done.stderr.startswith("treedb: --dev is development mode, which has no configuration")


def test_every_command_hints_at_options_that_are_misspelt() -> None:
    done = run_command("get", "https://localhost/", "--shalow", "--pretty")
    assert done.status == 2
    assert "unknown options: --shalow. Did you mean --shallow?" in done.errors


def test_python_m_treedbd_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treedbd", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout == make_parser().format_help()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_default_ports_that_are_in_use_are_replaced_by_the_next_free_ones(
    tmp_path: pathlib.Path, workers: str
) -> None:
    flags = ["--workers", workers]
    with default_ports_in_use(), Daemon(tmp_path, listen=[], arguments=flags) as daemon:
        ports = [urlsplit(url).port for url in daemon.urls]
        said = re.findall(
            r"Port (\d+) is in use, by another program: listening on (\d+) instead\.\n",
            daemon.log.partition("treedb ready")[0],
        )
        assert said == [(str(old), str(new)) for old, new in zip(DEFAULT_PORTS, ports, strict=True)]
        assert daemon.request("PUT", "/a.json", "1", secure=True).status == 200
        assert daemon.request("GET", "/a.json").body == b"1"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_daemon_in_the_folder_says_where_the_first_serves(
    tmp_path: pathlib.Path, workers: str
) -> None:
    with Daemon(tmp_path, listen=[], arguments=["--workers", workers]) as daemon:
        urls = " ".join(daemon.urls)
        for flags in (["--workers", workers], ["--listen", f"tcp:0:interface={LOOPBACK}"]):
            done = run_serve("--data", str(daemon.data), *flags, folder=tmp_path)
            assert done.returncode == 1
            assert done.stderr.startswith(f"treedb: treedb runs already: {urls} (process ")
            assert str(daemon.data) in done.stderr
            assert done.stderr.count("\n") == 1
            assert "instead" not in done.stdout
        assert daemon.request("GET", "/a.json").status == 200


def test_a_daemon_that_was_killed_runs_no_more(tmp_path: pathlib.Path) -> None:
    with default_ports_in_use(), Daemon(tmp_path, listen=[]) as daemon:
        daemon.kill()
        daemon.start()
        assert daemon.request("GET", "/a.json").status == 200


def test_a_port_that_is_named_is_not_replaced(tmp_path: pathlib.Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as used:
        endpoint = f"tcp:{used.getsockname()[1]}:interface={LOOPBACK}"
        for done in (
            run_serve("--listen", endpoint, folder=tmp_path),
            Daemon(tmp_path, config=f'listen = ["{endpoint}"]', listen=[], program=SERVE).run(),
        ):
            assert done.returncode == 1
            assert "stop the program that uses it, or choose another port" in done.stderr


def test_make_run_serves_with_the_flags_in_args() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run", "ARGS=--listen tcp:0 --dev"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "exec .venv/bin/treedb serve --listen tcp:0 --dev"


def test_development_mode_says_what_opens_it_to_other_machines(tmp_path: pathlib.Path) -> None:
    done = run_serve("--listen", "tcp:0", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "treedb: the command line: listen opens tcp:0 to other machines, which development mode "
        "does not allow: add interface=127.0.0.1, or use --lan.\n"
    )


@pytest.mark.parametrize("program", [SERVE, (str(TWISTD), "-n", "--pidfile=", "treedb")])
def test_a_page_of_an_origin_that_the_command_line_names_may_write(
    tmp_path: pathlib.Path, program: tuple[str, ...]
) -> None:
    origins = ("https://app.example.com", "http://box.example:3000")
    flags = [word for origin in origins for word in ("--origin", origin)]
    with Daemon(tmp_path, arguments=flags, program=program) as daemon:
        for origin in origins:
            page = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
            assert daemon.request("PUT", "/a.json", "1", page).status == 200
            owner = {**page, "Authorization": "Bearer owner"}
            assert daemon.request("GET", "/a.json", headers=owner).status == 401
        refused = daemon.request("PUT", "/a.json", "2", {"Origin": "https://other.example"})
        assert refused.status == 403
        assert "--origin https://other.example" in refused.json["message"]


def test_the_parent_of_workers_logs_its_ports_by_the_name_of_the_program(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, arguments=["--workers", "2"], program=SERVE) as daemon:
        port = daemon.http.rpartition(":")[2]
        assert f"Treedb starting on {port}" in daemon.log


@contextlib.contextmanager
def served_on_a_terminal(
    folder: pathlib.Path, *words: str, flags: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """Serve in a session of its own on a pseudo-terminal; the function closes its window."""
    master, slave = pty.openpty()
    with contextlib.ExitStack() as open_ends:
        window = open_ends.enter_context(open(master, "rb", buffering=0))
        command = ["setsid", "--ctty", *words, *SERVE, "--listen", "tcp:0:interface=127.0.0.1"]
        with open(slave, "rb", buffering=0) as terminal:
            process = open_ends.enter_context(
                subprocess.Popen(
                    [*command, *flags],
                    cwd=folder,
                    stdin=terminal,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        open_ends.callback(process.kill)
        yield process, window.close


def await_output(process: subprocess.Popen[str], text: str) -> None:
    """Read the output up to a line that contains `text`."""
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), text


def test_closing_the_terminal_ends_development_mode(tmp_path: pathlib.Path) -> None:
    with served_on_a_terminal(tmp_path) as (process, close):
        await_output(process, "treedb ready")
        close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_configured_daemon_and_nohup_outlive_the_terminal(
    tmp_path: pathlib.Path, is_configured: bool
) -> None:
    (tmp_path / "it.toml").write_text('data = "data"\n')
    words, flags = ([], ["--config", "it.toml"]) if is_configured else (["nohup"], [])
    with served_on_a_terminal(tmp_path, *words, flags=flags) as (process, close):
        await_output(process, "treedb ready")
        close()
        await_output(process, "The reload of")
        process.terminate()
        assert process.wait(60) == 0
