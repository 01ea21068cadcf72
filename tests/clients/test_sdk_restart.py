"""An app with the SDK for JavaScript goes on by itself after a restart of its daemon."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest

from tests.clients.harness import HERE, NODE, sign_token
from tests.clients.sdk_daemons import PROJECT, emulator, plain_variables
from tests.command import PATIENCE_S, Lines
from tests.daemon import Daemon
from tests.system import find_port


def request(daemon: Daemon, method: str, path: str, body: str | None = None) -> object:
    """Send an admin's request; return the value."""
    headers = {"Authorization": f"Bearer {sign_token(PROJECT, admin=True)}"}
    response = daemon.request(method, f"{path}.json?ns={PROJECT}", body, headers)
    assert response.status == 200
    return response.json


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_presence_listeners_and_writes_survive_a_restart(
    number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    for daemon in emulator(tmp_path, f"tcp:{find_port()}:interface=127.0.0.1"):
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **plain_variables(daemon)}
        command = [str(NODE), str(HERE / "sdk" / "restart.mjs")]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as running:
            try:
                lines = Lines(running.stdout)
                assert lines.next() == "ready"
                assert request(daemon, "GET", "/work/restart/here") is True
                daemon.signal(number)
                daemon.wait()
                assert lines.next() == "cut"
                daemon.start()
                request(daemon, "PUT", "/work/restart/news", '"after"')
                assert lines.next() == "done"
                assert running.wait(PATIENCE_S) == 0
            finally:
                running.kill()
        assert request(daemon, "GET", "/work/restart/counter") == 2
        assert request(daemon, "GET", "/work/restart/pending") == 1
