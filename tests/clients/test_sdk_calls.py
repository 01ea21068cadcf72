"""Every function of the SDKs for JavaScript that use a WebSocket, without TLS and with it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.clients.harness import Domain
from tests.clients.sdk_daemons import check_calls, emulator, plain_variables, secure_variables
from tests.daemon import Daemon

SCRIPTS = ("modular.mjs", "windows.mjs", "compat.mjs", "admin.mjs", "built_on.mjs")
WITHOUT_TLS = (
    *("modular.mjs", "admin.mjs"),
    *(pytest.param(each, marks=pytest.mark.slow) for each in SCRIPTS[1:3] + SCRIPTS[4:]),
)
"""They differ by how they connect only, which two show."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in emulator mode."""
    yield from emulator(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("script", WITHOUT_TLS)
def test_every_call_works_without_tls(script: str, plain: Daemon, tmp_path: pathlib.Path) -> None:
    check_calls(script, tmp_path, plain_variables(plain))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_call_works_over_tls(script: str, domain: Domain, tmp_path: pathlib.Path) -> None:
    check_calls(script, tmp_path, secure_variables(domain))
