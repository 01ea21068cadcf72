"""Tests of an application without sockets: requests by treq's `StubTreq`, data in memory.

Run it with `.venv/bin/python -m pytest docs/embedding/test_without_sockets.py`; pytest-twisted runs
the coroutines.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest_twisted
from treq.testing import StubTreq
from twisted.internet import reactor

from treedbd import Settings, TreeService

SETTINGS = Settings.from_values(engine="memory", default_project="app", projects={"app": {}})


@asynccontextmanager
async def running() -> AsyncIterator[TreeService]:
    """Run a service whose data is gone afterwards."""
    service = TreeService(SETTINGS, reactor)
    service.privilegedStartService()
    service.startService()
    try:
        yield service
    finally:
        await service.stopService()


@pytest_twisted.ensureDeferred
async def test_what_the_program_writes_can_be_read_as_a_user_may() -> None:
    """The rules of this project, which has none, deny everything over HTTP."""
    async with running() as service:
        await service.database("app").put("people/ada", 36)
        client: Any = StubTreq(service.resource())
        response = await client.get("http://localhost/people/ada.json")
        assert response.code == 403
        assert await service.database("app").get("people") == {"ada": 36}
