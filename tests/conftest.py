"""Fixtures that the tests of several packages share."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.daemon import Daemon
from tests.examples import examples
from tests.fork_server import first_environment, first_limits
from tests.postgresql import PostgresqlServers
from tests.rest import Client
from tests.shared_server import shared_server

MEMORY_DISK = pathlib.Path("/dev/shm")
MEMORY_DISK_BYTES = 4 * 1024**3


def use_memory_disk() -> None:
    """Make temporary files in memory if there is room: a thousand times a test waits for a disk.

    A process that is killed leaves the same files there, and a system call fails there the same.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY_DISK, os.W_OK):
        return
    if shutil.disk_usage(MEMORY_DISK).free >= MEMORY_DISK_BYTES:
        os.environ["TMPDIR"] = str(MEMORY_DISK)
        tempfile.tempdir = None


def keep_bytecode() -> None:
    """Keep compiled modules, also where the environment says not to: thousands of processes start.

    Those that nothing has changed are there for the next run too.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pass_on_no_ignored_signals() -> None:
    """Let the processes that tests start have SIGINT, SIGQUIT and SIGHUP as in a terminal.

    Under `nohup`, or in the background of a script, these are ignored by inheritance. This process
    goes on to ignore them, by a handler: unlike SIG_IGN it is not inherited by a program that is
    started.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _signal, _frame: None)


LONGEST = (
    "test_bench",
    "test_cluster_faults",
    "clients/test_sdk_calls",
    "test_presence_over_postgresql",
    "clients/test_firebase_tools",
    "web/test_remembered_heads",
    "test_streams_readers",
    "store/postgresql/test_servers",
    "database/test_watched_queries",
    "test_openapi",
    "test_crashes",
    "test_notified_writes",
    "test_realtime_hostile",
    "console/test_tree",
    "test_faults",
    "test_socket_activation",
    "test_daemon",
    "test_streams_bounds",
    "console/test_shell",
    "console/test_now",
    "store/sqlite/test_writer",
    "database/test_large_writes",
    "console/test_rules_view",
    "test_streams_lines",
    "console/test_tools",
    "store/test_nodes_model",
    "console/test_conditions",
    "test_cli_migrate",
    "test_history_faults",
    "test_realtime_presence_rounds",
    "rules/test_hostile",
    "test_serve",
    "test_workers",
    "test_board_docs",
    "cli/loading/test_exporting",
    "test_embedding_docs",
    "tree/test_fragments",
    "tree/test_overlay",
    "test_cli_console",
    "test_packaging",
    "test_interface_timeouts",
    "test_history_trials",
    "test_several_processes",
    "console/test_vendor",
)
"""The files that take longest, with the longest first, as their paths below this folder."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect a folder from another place on in each process of a run.

    Python compiles a file once for all processes, with its assertions rewritten, if they do not all
    import it at the same time.
    """
    report = yield
    if isinstance(collector, pytest.Directory):
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        first = len(report.result) * worker // workers
        report.result = report.result[first:] + report.result[:first]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that all processes of a run end together."""
    tests = pathlib.Path(__file__).parent
    places = {tests / f"{path}.py": place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path))


def pytest_collection() -> None:
    """Search for no garbage during the collection: nearly all that it makes is kept."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take all that the collection has made out of what is searched for garbage.

    That is not searched even once: it takes a second, and nearly all of it is kept.
    """
    gc.freeze()
    gc.enable()


use_memory_disk()
keep_bytecode()

# On a busy machine an example, or the making of one, may take any time: that is no failure. The
# examples differ from run to run; one that fails is printed so that it can be repeated.
settings.register_profile(
    "gate",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("gate")


@pytest.fixture(scope="session", autouse=True)
def inherited_signals() -> None:
    """Call `pass_on_no_ignored_signals`, only where tests run: workers of xdist inherit too."""
    pass_on_no_ignored_signals()


@pytest.fixture(scope="session", autouse=True)
def inherited_environment() -> None:
    """Keep what processes inherit before a test changes it."""
    first_environment()
    first_limits()


@pytest.fixture(scope="session")
def lone_server() -> PostgresqlServers:
    """One server of PostgreSQL that waits for no standby; for tests that leave it as it is."""
    return shared_server()


@pytest.fixture
def clean_server(lone_server: PostgresqlServers) -> Iterator[PostgresqlServers]:
    """The one server, without any tables of treedb, before the test and after it."""
    lone_server.primary.query("DROP SCHEMA IF EXISTS treedb CASCADE")
    yield lone_server
    lone_server.primary.query("DROP SCHEMA IF EXISTS treedb CASCADE")


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A running daemon in development mode, for one test only."""
    with Daemon(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for all tests of a module; a module that configures it overrides this fixture."""
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def tree(shared_daemon: Daemon) -> Iterator[Client]:
    """A client of a project for one test only, in the daemon that its module shares."""
    with Client.of_new_tree(shared_daemon) as client:
        yield client


@pytest.fixture(scope="module")
def shared_tree(shared_daemon: Daemon) -> Iterator[Client]:
    """A client of a project for all tests of a module, or for all examples of one."""
    with Client.of_new_tree(shared_daemon) as client:
        yield client
