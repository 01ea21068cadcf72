"""The examples of embedding do what their page says; the reference is built without warnings."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.daemon import request
from tests.system import find_port

PROJECT = pathlib.Path(__file__).parent.parent
EXAMPLES = PROJECT / "docs" / "embedding"
PAGE = (PROJECT / "docs" / "embedding.md").read_text()

ASYNCIO = """
import asyncio, sys
from twisted.internet import asyncioreactor
loop = asyncio.new_event_loop()
asyncioreactor.install(loop)
from twisted.internet import reactor
from treedbd import Settings, TreeService, Unavailable

WRITES, IN_FLIGHT = 10_000, 500
settings = Settings.from_values(data="data", default_project="app", projects={"app": {}})

async def main():
    service = TreeService(settings, reactor)
    service.privilegedStartService()
    service.startService()
    database = service.database("app")
    async with database.watch("n") as events:
        await anext(events)

        async def write(first):
            for number in range(first, WRITES, IN_FLIGHT):
                await database.put(f"n/k{number}", number)

        writing = asyncio.gather(*map(write, range(IN_FLIGHT)))
        found = sorted([(await anext(events)).data for _ in range(WRITES)])
        await writing
        assert found == list(range(WRITES))

        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            print("cancelled")
        writing = asyncio.create_task(database.put("n/last", True))
        await asyncio.sleep(0)
        writing.cancel()
        print((await anext(events)).data)
    print(len(service.resource().streams))
    await service.stopService().asFuture(asyncio.get_running_loop())
    try:
        await database.get()
    except Unavailable:
        print("stopped")

task = loop.create_task(main())
task.add_done_callback(lambda _: reactor.stop())
reactor.run()
task.result()
"""


def run(folder: pathlib.Path, *arguments: str) -> list[str]:
    """Run Python in a folder; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_the_program_reads_writes_and_watches_in_its_process(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, str(EXAMPLES / "in_process.py")) == [
        "{'alan': {'age': 41, 'name': 'Alan'}}",
        "1",
        "it is 38",
        "put / None",
        "put /ada {'age': 36, 'name': 'Ada'}",
        "patch / {'ada/age': 37, 'alan': {'name': 'Alan', 'age': 41}}",
        "put /ada/age 38",
    ]


def test_the_program_of_asyncio_counts(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, str(EXAMPLES / "with_asyncio.py")) == ["counted to 10"]


def test_the_tests_without_sockets_pass(tmp_path: pathlib.Path) -> None:
    file = str(EXAMPLES / "test_without_sockets.py")
    printed = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", file)
    assert printed[-1].startswith("1 passed")


@contextlib.contextmanager
def own_login(folder: pathlib.Path, port: int) -> Iterator[None]:
    command = [sys.executable, str(EXAMPLES / "own_login.py"), f"tcp:{port}:interface=127.0.0.1"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serving\n"
            yield
        finally:
            process.terminate()


def test_the_users_of_the_application_write_what_is_theirs(tmp_path: pathlib.Path) -> None:
    port = find_port()
    site = f"http://127.0.0.1:{port}"
    ada, path = {"Cookie": "session=s-ada"}, "/users/ada/age.json"
    with own_login(tmp_path, port):
        assert request(site, "PUT", path, "36", ada).short == (200, b"36")
        assert request(site, "PUT", path, "37").status == 403
        assert request(site, "PUT", "/users/alan/age.json", "41", ada).status == 403
        assert request(site, "GET", path).short == (200, b"36")
        assert request(site, "GET", "/.json", None, {"Cookie": "session=s-root"}).status == 200


def test_in_tasks_of_asyncio_a_watch_misses_none_of_ten_thousand_writes(
    tmp_path: pathlib.Path,
) -> None:
    printed = run(tmp_path, "-c", ASYNCIO)
    assert printed == ["cancelled", "True", "0", "stopped"]


def test_the_page_names_every_example() -> None:
    named = set(re.findall(r"\(embedding/(\w+\.py)\)", PAGE))
    assert named == {file.name for file in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", ["LocalDatabase", "TreeService", "Watch", "Settings"])
def test_the_reference_is_built_from_the_docstrings(reference: pathlib.Path, name: str) -> None:
    assert f"treedbd.{name}" in (reference / "classIndex.html").read_text()
    assert (reference / f"treedbd.{name}.html").exists()
    assert not list(reference.glob("treedbd.web*"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The reference, built as the page says."""
    folder = tmp_path_factory.mktemp("reference")
    (line,) = re.findall(r"^    \.venv/bin/(pydoctor .*)$", PAGE, re.MULTILINE)
    command = shlex.split(line.replace("reference", str(folder)))
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Those of Twisted's interfaces are not part of what pydoctor reads.
    warnings = re.findall(
        r"^(?!.* is not an interface$)(\S+:\d+: .*|don't link .*)", done.stdout, re.MULTILINE
    )
    assert warnings == []
    return folder
