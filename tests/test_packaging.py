"""twistd finds treedb after each kind of install: wheel, source distribution, editable."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser

import pytest

from tests.daemon import Daemon
from treedbd import __version__
from treedbd.web.console import FOLDER, find_files
from treedbd.web.pages import DOCUMENT_FILE_PATHS, DOCUMENT_PATHS

PROJECT = pathlib.Path(__file__).parent.parent
BIN = pathlib.Path(sys.executable).parent
PLUGIN = "twisted/plugins/treedb_plugin.py"
PRINT_PLUGINS = """
import sys
from twisted.scripts.twistd import run
from twisted.plugins import treedb_plugin
print(treedb_plugin.__file__)
sys.argv = ["twistd", "--help"]
run()
"""


def run(*command: str | pathlib.Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(environment: pathlib.Path, *arguments: str | pathlib.Path) -> None:
    """Install into an environment, which need not have a pip of its own."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        f"--python={environment}",
    ]
    run(*command, "install", "--quiet", "--no-compile", *arguments)


def site_packages(environment: pathlib.Path) -> pathlib.Path:
    (folder,) = (environment / "lib").glob("python*/site-packages")
    return folder


def add_dependencies(environment: pathlib.Path) -> None:
    """Make the dependencies of this environment importable in another, without the project."""
    source = sysconfig.get_path("purelib")
    (site_packages(environment) / "dependencies.pth").write_text(f"{source}\n")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a source distribution and a wheel."""
    return build(PROJECT, tmp_path_factory.mktemp("built"), "sdist", "wheel")


def build(project: pathlib.Path, folder: pathlib.Path, *targets: str) -> pathlib.Path:
    """Build distributions of these kinds into a folder; return it."""
    subprocess.run(
        [str(BIN / "hatchling"), "build", "-d", str(folder), *(f"-t={each}" for each in targets)],
        cwd=project,
        capture_output=True,
        check=True,
    )
    return folder


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> pathlib.Path:
    """A fresh virtual environment."""
    folder = tmp_path / "environment"
    venv.create(folder)
    return folder


def only(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    (file,) = folder.glob(pattern)
    return file


def test_the_wheel_holds_the_package_the_plugin_and_nothing_else(built: pathlib.Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = wheel.namelist()
    outside = [name for name in names if not name.startswith("treedbd/")]
    assert PLUGIN in outside
    assert [name for name in outside if name.startswith("twisted/")] == [PLUGIN]
    assert all(".dist-info/" in name for name in outside if name != PLUGIN)
    sources = {str(file.relative_to(PROJECT)) for file in (PROJECT / "treedbd").rglob("*.py")}
    assert {name for name in names if name.startswith("treedbd/")} >= sources
    assert not [name for name in names if name.endswith(("dropin.cache", ".pyc"))]


def test_the_source_distribution_holds_all_that_a_build_needs(built: pathlib.Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", PLUGIN, "conf/treedb.toml"} <= names
    assert not [name for name in names if name.endswith("dropin.cache") or ".venv" in name]


def console_files() -> set[str]:
    """Return the files of the console, and what says how its libraries were made."""
    files = {file for file in FOLDER.rglob("*") if file.is_file() and file.name[0] != "."}
    return {str(file.relative_to(PROJECT)) for file in files}


def test_both_distributions_hold_the_files_of_the_console(built: pathlib.Path) -> None:
    assert "treedbd/console/index.html" in console_files()
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        assert console_files() <= set(wheel.namelist())
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert console_files() <= names


def test_wheel_and_source_distribution_have_the_version_of_the_package(built: pathlib.Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        wheel_metadata = wheel.read(f"treedbd-{__version__}.dist-info/METADATA").decode()
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        file = archive.extractfile(f"treedbd-{__version__}/PKG-INFO")
        assert file is not None
        sdist_metadata = file.read().decode()
    for metadata in (wheel_metadata, sdist_metadata):
        assert Parser().parsestr(metadata)["Version"] == __version__


def test_no_distribution_holds_stray_files(
    tmp_path: pathlib.Path,
) -> None:
    copy = tmp_path / "treedb"
    shutil.copytree(
        PROJECT,
        copy,
        ignore=shutil.ignore_patterns(".*_cache", ".git", ".venv", ".hypothesis", "node_modules"),
    )
    for stray in (
        "embedded-data/app/default.shelf",
        "mine.secret",
        "treedb-data/localhost.key.pem",
        "conf/treedb/shop.secret",
        "docs/treedb-data/localhost.key.pem",
    ):
        (copy / stray).parent.mkdir(parents=True, exist_ok=True)
        (copy / stray).write_text("private")
    folder = build(copy, tmp_path, "sdist", "wheel")
    with zipfile.ZipFile(only(folder, "*.whl")) as wheel:
        assert [name for name in wheel.namelist() if name.endswith((".secret", ".pem"))] == []
    with tarfile.open(only(folder, "*.tar.gz")) as archive:
        names = archive.getnames()
    assert [name for name in names if name.endswith((".secret", ".pem"))] == []
    tops = {name.split("/")[1] for name in names}
    assert tops == {
        *("treedbd", "twisted", "tests", "docs", "conf", "bench", ".ci", "pyproject.toml"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "Makefile"),
        *(".gitignore", "PKG-INFO"),
    }


@pytest.fixture(scope="module")
def installed(built: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of pipx, which has installed the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("pipx")
    places = {"PIPX_HOME": folder, "PIPX_BIN_DIR": folder / "bin", "PIPX_MAN_DIR": folder / "man"}
    subprocess.run(
        [str(BIN / "pipx"), "install", "--pip-args=--no-compile", str(only(built, "*.whl"))],
        env={**os.environ, **{name: str(place) for name, place in places.items()}},
        capture_output=True,
        check=True,
    )
    return folder


def test_an_installed_wheel_adds_treedb_to_twistd(installed: pathlib.Path) -> None:
    twistd = installed / "venvs" / "treedbd" / "bin" / "twistd"
    help_text = run(twistd, "--help")
    assert "treedb" in help_text.split("Commands:")[1]
    assert "--listen" in run(twistd, "treedb", "--help")


def refuse_postgresql(treedb: pathlib.Path, folder: pathlib.Path) -> str:
    """Return what a copy without the driver of PostgreSQL says of an engine that needs it."""
    config = folder / "cluster.toml"
    config.write_text('engine = "postgresql://127.0.0.1:1/treedb"\n[projects.demo]\n')
    command = [str(treedb), "cluster", "status", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


def test_treedb_as_pipx_installs_it_serves(
    built: pathlib.Path, installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    treedb = installed / "bin" / "treedb"
    assert [each.name for each in treedb.parent.iterdir()] == ["treedb"]
    run(treedb, "init", tmp_path / "new")
    unit = (tmp_path / "new" / "treedb.service").read_text()
    assert refuse_postgresql(treedb, tmp_path).endswith(
        f": run pipx install --force 'treedbd[postgresql] @ file://{only(built, '*.whl')}'.\n"
    )
    assert f"\nExecStart={installed}/venvs/treedbd/bin/treedb serve --config " in unit
    with Daemon(tmp_path, program=(str(treedb), "serve")) as daemon:
        assert daemon.request("PUT", "/a.json?ns=demo", "1", secure=True).status == 200
        for path in (*DOCUMENT_PATHS, *DOCUMENT_FILE_PATHS):
            assert daemon.request("GET", path).status == 200, path
        for name in find_files(FOLDER):
            response = daemon.request("GET", f"/.console/{name}")
            assert response.short == (200, (FOLDER / name).read_bytes())
        assert daemon.stop() == 0


def test_an_installed_source_distribution_adds_treedb_to_twistd(
    built: pathlib.Path, environment: pathlib.Path
) -> None:
    add_dependencies(environment)
    pip(environment, "--no-deps", "--no-build-isolation", only(built, "*.tar.gz"))
    plugin, help_text = run(environment / "bin" / "python", "-c", PRINT_PLUGINS).split("\n", 1)
    assert pathlib.Path(plugin) == site_packages(environment) / PLUGIN
    assert "treedb" in help_text.split("Commands:")[1]


def test_an_editable_install_adds_treedb_to_twistd(environment: pathlib.Path) -> None:
    add_dependencies(environment)
    pip(environment, "--no-deps", "--no-build-isolation", "--editable", PROJECT)
    plugin, help_text = run(environment / "bin" / "python", "-c", PRINT_PLUGINS).split("\n", 1)
    assert pathlib.Path(plugin) == PROJECT / PLUGIN
    assert "treedb" in help_text.split("Commands:")[1]


def test_the_wheel_prints_every_file_of_conf(
    built: pathlib.Path, environment: pathlib.Path
) -> None:
    add_dependencies(environment)
    pip(environment, "--no-deps", only(built, "*.whl"))
    treedb = environment / "bin" / "treedb"
    for file in (PROJECT / "conf").iterdir():
        if file.is_file():
            assert run(treedb, "init", "--print", file.name) == file.read_text()
