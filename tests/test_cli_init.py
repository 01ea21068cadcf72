"""`treedb init`: what it writes works as it is, and nothing that exists is touched."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import stat
import subprocess
import sys

import pytest

from tests.command import COMMAND, CommandResult, run_command
from tests.daemon import SERVE, Daemon
from treedbd.cli.init import Plan, quote_for_unit, read_sample
from treedbd.cli.parser import parse
from treedbd.config.settings import load_settings
from treedbd.files import SAMPLES
from treedbd.web.auth.jwt import MIN_SECRET_BYTES, read_secret

PROJECT = pathlib.Path(__file__).parent.parent
FILES = {"treedb.toml", "rules.json", "treedb.service"}


def init(folder: pathlib.Path | str, *options: str) -> CommandResult:
    return run_command("init", folder, *options)


def names_in(folder: pathlib.Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


class Initialised(Daemon):
    """A daemon that serves what `treedb init` has written, exactly as it says."""

    def __init__(self, folder: pathlib.Path, serve_line: str) -> None:
        words = shlex.split(serve_line)
        super().__init__(folder, listen=[], program=[*SERVE, *words[2:]])
        at = self._command.index("--data")
        del self._command[at : at + 2]


def test_the_lines_it_prints_work_when_they_are_typed(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "with space" / "new"
    lines = re.findall(r"^ {4}(.*)$", init(folder).text, re.MULTILINE)
    serve, *rest = lines
    assert len(rest) == 2
    with Initialised(tmp_path, serve) as daemon:
        script = "\n".join(rest).replace("treedb ", f"{shlex.join(COMMAND)} ")
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, '{"name":"Ada"}\n'), done.stderr
        path = "/users/ada.json"
        assert daemon.request("GET", path).status == 403
        for uid, status in (("ada", 200), ("bob", 403)):
            config = folder / "treedb.toml"
            words = ("token", "--config", config, "--project", "app", "--uid", uid)
            token = {"Authorization": f"Bearer {run_command(*words).text}"}
            path = "/users/ada.json?ns=app"
            assert daemon.request("GET", path, headers=token).status in (status, 401)
            assert (daemon.request("GET", path, headers=token).status == 200) is (status == 200)
        assert "Development mode" not in daemon.log
    assert (folder / "data" / "app" / "default.shelf").is_file()


def test_the_files_are_private_and_the_secret_is_long_and_new_each_time(
    tmp_path: pathlib.Path,
) -> None:
    for name in ("a", "b"):
        assert init(tmp_path / name, "--project", "shop").status == 0
        assert names_in(tmp_path / name) == FILES | {"shop.secret"}
        for file in (tmp_path / name).iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    one, other = (read_secret(tmp_path / name / "shop.secret") for name in ("a", "b"))
    assert one != other
    assert len(one) >= MIN_SECRET_BYTES


def test_the_domain_and_the_project_are_configured(tmp_path: pathlib.Path) -> None:
    assert init(tmp_path, "--domain", "DB.Example.com", "--project", "shop").status == 0
    settings = load_settings(tmp_path / "treedb.toml", {}, tmp_path)
    assert settings.domains == ("db.example.com",)
    assert settings.default_project == "shop"
    assert set(settings.projects) == {"shop"}
    assert settings.data == tmp_path / "data"
    assert all(endpoint.is_loopback for endpoint in settings.listen)


def test_every_line_that_is_commented_out_is_valid_too(tmp_path: pathlib.Path) -> None:
    assert init(tmp_path).status == 0
    file = tmp_path / "treedb.toml"
    lines = file.read_text().splitlines()
    commented = [line[1:] for line in lines if re.match(r"#\w+ = ", line)]
    assert len(commented) == 4
    for line in commented:
        key = line.partition(" ")[0]
        others = [each for each in lines if not each.startswith(f"{key} = ")]
        file.write_text("\n".join([line, *others]))
        load_settings(file, {}, tmp_path)


@pytest.mark.parametrize("name", ["treedb.toml", "app.secret", "rules.json", "treedb.service"])
def test_a_file_that_exists_is_kept_and_nothing_is_written(
    tmp_path: pathlib.Path, name: str
) -> None:
    (tmp_path / name).symlink_to("nowhere")
    error = init(tmp_path).error
    assert error.startswith(f"{tmp_path / name} exists already, and nothing was written: ")
    assert names_in(tmp_path) == {name}
    assert os.readlink(tmp_path / name) == "nowhere"


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written to (Not a directory)" in init(tmp_path / "file" / "folder").error
    assert "cannot be printed" in init(tmp_path / "line\nend").error
    assert names_in(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "the following arguments are required: DIR"),
        (["d", "--domain", "a b"], "must be a host name such as db.example.com"),
        (["d", "--project", "Shop"], "must have small letters"),
        (["d", "--project", "eu--shop"], "must have small letters"),
        (["d", "--project", ""], "must have small letters"),
        (["d", "--domian", "x"], "unknown options: --domian. Did you mean --domain?"),
    ],
)
def test_a_wrong_command_line_writes_nothing(
    tmp_path: pathlib.Path, words: list[str], problem: str
) -> None:
    done = run_command("init", *words, folder=tmp_path)
    assert done.status == 2
    assert problem in done.errors
    assert not list(tmp_path.iterdir())


def test_the_sample_has_every_key(tmp_path: pathlib.Path) -> None:
    printed = run_command("init", "--print-sample", folder=tmp_path).output.decode()
    assert run_command("init", "--print", "treedb.toml").output.decode() == printed
    assert printed == (PROJECT / "conf" / "treedb.toml").read_text()
    assert not list(tmp_path.iterdir())


def test_systemd_accepts_the_unit(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "it's 100% of $HOME"
    assert init(folder).status == 0
    command = ["systemd-analyze", "verify", str(folder / "treedb.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "treedb.service" not in done.stdout + done.stderr
    unit = (folder / "treedb.service").read_text()
    assert f"\nExecStart={pathlib.Path(sys.executable).parent}/" in unit
    assert "it's 100%% of $$HOME/treedb.toml\"\n" in unit
    assert f'\nReadWritePaths="{str(folder).replace("%", "%%")}"\n' in unit


@pytest.mark.parametrize(
    ("folder", "command", "line"),
    [
        ("/etc/treedb", "/opt/treedb/bin/treedb", "ProtectHome=yes"),
        ("/home/ada/treedb", "/opt/treedb/bin/treedb", "ProtectHome=read-only"),
        ("/etc/treedb", "/root/.local/bin/treedb", "ProtectHome=read-only"),
    ],
)
def test_the_unit_shows_home_directories_only_where_they_are_needed(
    folder: str, command: str, line: str
) -> None:
    interpreter = pathlib.Path("/usr/bin/python3")
    plan = Plan(pathlib.Path(folder), "app", "", 8080, "ada", (command,), interpreter)
    unit = plan.files(read_sample("treedb.service"))["treedb.service"].splitlines()
    assert {line, f"ReadWritePaths={folder}", "User=ada"} <= set(unit)
    assert f"ExecStart={command} serve --config {folder}/treedb.toml" in unit


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("/etc/treedb", "/etc/treedb"),
        ("/a b", '"/a b"'),
        ("/100%", "/100%%"),
        ("/$HOME", "/$$HOME"),
        ("/it's", '"/it\'s"'),
        ('/a"b\\', '"/a\\"b\\\\"'),
    ],
)
def test_words_of_a_unit_are_quoted(word: str, quoted: str) -> None:
    assert quote_for_unit(word, is_command=True) == quoted
    assert quote_for_unit("/$HOME") == "/$HOME"


def test_each_file_of_conf_is_printed_as_it_is() -> None:
    assert sorted(SAMPLES) == sorted(
        file.name for file in (PROJECT / "conf").iterdir() if file.is_file()
    )
    for name in SAMPLES:
        assert run_command("init", "--print", name).output == (PROJECT / "conf" / name).read_bytes()


def test_a_name_that_no_sample_has_names_all_that_there_are() -> None:
    done = run_command("init", "--print", "../pyproject.toml")
    assert done.status == 2
    assert [name for name in SAMPLES if name not in done.errors] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_names_of_samples(shell: str) -> None:
    script = run_command("completion", shell).text
    assert [name for name in SAMPLES if name not in script] == []


@pytest.mark.parametrize("user_id", [0, 1000])
def test_root_is_warned_of_a_unit_that_would_run_as_root(
    tmp_path: pathlib.Path,
    user_id: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user_id)
    folder = tmp_path / "new"
    arguments = parse(["init", str(folder)])
    assert arguments.run(arguments) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    if user_id:
        assert "root" not in last
    else:
        assert last == (
            "The unit would run the daemon as root: name another user in User= of treedb.service, "
            f"and let that user own the folder: chown -R USER {folder}"
        )
