"""The line that adds an extra: it fits how this copy was installed, and never names `treedb`."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
import zipfile

import pytest

from tests.command import run_command
from tests.test_packaging import build, only
from treedbd.files import DISTRIBUTION, Installation, read_installation

PROJECT = pathlib.Path(__file__).parent.parent
ENVIRONMENT = pathlib.Path("/home/ada/my env")
PYTHON = f"{ENVIRONMENT}/bin/python"
QUOTED = f"'{PYTHON}'"
WHEEL = "file:///tmp/treedbd-1-py3-none-any.whl"


@pytest.fixture
def metadata(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The metadata of an installation, which Python finds before the one of these tests."""
    folder = tmp_path / f"{DISTRIBUTION}-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", PYTHON)
    return folder


@pytest.mark.parametrize(
    ("tool", "installer", "line"),
    [
        ("pipx_metadata.json", "pip", "pipx install --force 'treedbd[postgresql]'"),
        ("uv-receipt.toml", "uv", "uv tool install 'treedbd[postgresql]'"),
        ("", "uv", f"uv pip install --python {QUOTED} 'treedbd[postgresql]'"),
        ("", "pip", f"{QUOTED} -m pip install 'treedbd[postgresql]'"),
    ],
)
def test_what_came_from_the_index_is_extended_by_the_tool_that_installed_it(
    metadata: pathlib.Path, tool: str, installer: str, line: str
) -> None:
    (metadata / "INSTALLER").write_text(f"{installer}\n")
    if tool:
        (metadata.parent / tool).write_text("")
    assert read_installation().line_for("postgresql") == line


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({"url": WHEEL, "archive_info": {}}, f"treedbd[postgresql] @ {WHEEL}"),
        ({"url": "file:///a/b", "dir_info": {}}, "treedbd[postgresql] @ file:///a/b"),
        (
            {
                "url": "https://a.example/b.git",
                "vcs_info": {"vcs": "git", "commit_id": "5", "requested_revision": "main"},
            },
            "treedbd[postgresql] @ git+https://a.example/b.git@main",
        ),
        (
            {"url": "https://a.example/b.git", "vcs_info": {"vcs": "git", "commit_id": "5"}},
            "treedbd[postgresql] @ git+https://a.example/b.git@5",
        ),
    ],
)
def test_what_came_from_elsewhere_is_extended_from_there(
    metadata: pathlib.Path, origin: object, requirement: str
) -> None:
    (metadata / "direct_url.json").write_text(json.dumps(origin))
    line = read_installation().line_for("postgresql")
    assert line == f"{QUOTED} -m pip install '{requirement}'"


def test_a_checkout_is_extended_where_it_is(metadata: pathlib.Path) -> None:
    line = f"{QUOTED} -m pip install --editable '{PROJECT}[postgresql]'"
    (metadata / "direct_url.json").write_text(
        '{"url": "file:///a", "dir_info": {"editable": true}}'
    )
    assert read_installation().line_for("postgresql") == line


def test_a_copy_without_metadata_is_extended_as_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treedbd.files.DISTRIBUTION", "no-such-distribution")
    assert read_installation().checkout == PROJECT


def test_the_line_is_one_that_a_shell_takes_apart_again() -> None:
    installation = Installation(ENVIRONMENT, PYTHON, source="file:///with%20space/it's.whl")
    *words, requirement = shlex.split(installation.line_for("postgresql"))
    assert words == [PYTHON, "-m", "pip", "install"]
    assert requirement == "treedbd[postgresql] @ file:///with%20space/it's.whl"


def test_the_distribution_has_the_extras_that_errors_name(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(only(build(PROJECT, tmp_path, "wheel"), "*.whl")) as wheel:
        (file,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        lines = wheel.read(file).decode().splitlines()
    assert f"Name: {DISTRIBUTION}" in lines
    assert {"Provides-Extra: postgresql", "Provides-Extra: opentelemetry"} <= set(lines)


def test_the_command_is_still_treedb() -> None:
    assert run_command("--version").text.startswith("treedb ")
