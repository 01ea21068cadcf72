"""Metrics of services in one program: each counts its own, or nothing without endpoints."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import pytest_twisted
from treq.testing import StubTreq
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import fail
from twisted.internet.error import ConnectionLost
from twisted.internet.threads import deferToThread

from tests.ops import Scrape, fetch
from treedbd.config.settings import Settings
from treedbd.database.requests import Unavailable
from treedbd.service import TreeService

reactor: Any = installed_reactor


def make(folder: pathlib.Path, engine: str = "sqlite") -> TreeService:
    return TreeService(
        Settings.from_values(
            data=str(folder),
            default_project="shop",
            projects={"shop": {"databases": "*"}},
            ops_listen=["tcp:0:interface=127.0.0.1"],
            engine=engine,
        ),
        reactor,
    )


async def scrape(service: TreeService) -> Scrape:
    (url,) = service.ops_urls()
    status, _, text = await deferToThread(fetch, f"{url}/.metrics")
    assert status == 200
    return Scrape(text)


@pytest_twisted.ensureDeferred
async def test_two_services_in_one_process_count_apart(tmp_path: pathlib.Path) -> None:
    stored, in_memory = make(tmp_path / "a"), make(tmp_path / "b", engine="memory")
    for service in (stored, in_memory):
        service.privilegedStartService()
        service.startService()
    for _ in range(3):
        await stored.database("shop").put("/a", 1)
    one, other = await scrape(stored), await scrape(in_memory)
    assert one.get("treedb_writes_total") == 3
    assert other.get("treedb_writes_total") == 0
    assert one.of("treedb_store_bytes")
    # Nothing is in files, and nothing to be saved.
    for name in ("treedb_store_bytes", "treedb_disk_free_bytes"):
        assert not other.of(name)
    assert one.get("treedb_last_backup_timestamp_seconds") == 0
    assert not other.of("treedb_last_backup_timestamp_seconds")
    for service in (stored, in_memory):
        await service.stopService()


@pytest_twisted.ensureDeferred
async def test_without_its_parent_a_process_shows_its_own_problems(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(tmp_path)
    service.privilegedStartService()
    service.startService()
    for lost in (ConnectionLost(), Unavailable("The server is shutting down.")):
        monkeypatch.setattr(service.catalog, "find_problems", lambda lost=lost: fail(lost))
        assert (await scrape(service)).get("treedb_problems") == 0
    await service.stopService()


@pytest_twisted.ensureDeferred
async def test_without_endpoints_for_operators_nothing_is_measured(tmp_path: pathlib.Path) -> None:
    settings = Settings.from_values(
        data=str(tmp_path / "a"), default_project="shop", projects={"shop": {"databases": "*"}}
    )
    service = TreeService(settings, reactor)
    service.privilegedStartService()
    service.startService()
    assert service.ops_urls() == []
    client: Any = StubTreq(service.resource())
    response = await client.get("http://localhost/a.json")
    await service.database("shop").put("/a", 1)
    assert response.code == 403
    counted = service._operations.sources
    counted.statistics.count()
    assert counted.statistics.writes == 0
    assert not counted.requests.refused
    await service.stopService()
