"""The audit of a service in a program: its own writes and reads are `local`."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import pytest_twisted

from tests.embedding.embedded import running, settings_in
from treedbd.audit.chain import verify
from treedbd.audit.series import list_files, list_series
from treedbd.database.requests import PermissionDenied
from treedbd.names import DatabaseName
from treedbd.store.cursors import read_cursors

AUDIT = {"directory": "audit", "reads": True, "denied": True}


def lines_in(folder: pathlib.Path) -> list[tuple[Any, ...]]:
    found = []
    for series in list_series(folder / "audit"):
        assert verify(series).faults == ()
        for file in list_files(series):
            found += [json.loads(line) for line in file.path.open()][1:]
    names = ("kind", "method", "path", "uid", "admin", "from", "means")
    return [tuple(each.get(name) for name in names) for each in found]


@pytest_twisted.ensureDeferred
async def test_what_a_program_does_is_audited_as_local(tmp_path: pathlib.Path) -> None:
    async with running(settings_in(tmp_path, engine="sqlite", audit=AUDIT)) as service:
        await service.database("app").put("motd", "hello")
        ada = service.database("app", auth={"uid": "ada"})
        await ada.put("users/ada", {"age": 36})
        with pytest.raises(PermissionDenied):
            await ada.put("users/eve", {"age": 36})
        await service.database("app").get("users/ada")
        async with service.database("app").watch("motd") as watch:
            assert (await anext(watch)).data == "hello"
    assert sorted(lines_in(tmp_path), key=str) == [
        ("denied", "PUT", "/users/eve", "ada", None, None, "local"),
        ("read", "GET", "/motd", None, True, None, "local"),
        ("read", "GET", "/users/ada", None, True, None, "local"),
        ("write", "PUT", "/motd", None, True, None, "local"),
        ("write", "PUT", "/users/ada", "ada", None, None, "local"),
    ]


@pytest_twisted.ensureDeferred
async def test_without_an_audit_the_log_does_not_say_where_a_write_came_from(
    tmp_path: pathlib.Path,
) -> None:
    async with running(settings_in(tmp_path, engine="sqlite")) as service:
        await service.database("app").put("motd", "hello")
        database = service.catalog.find(DatabaseName("app"))
        (entry,) = database.read(lambda nodes: list(nodes.rows.entries(0)))
        assert b"from" not in entry.content
        assert database.read(lambda nodes: read_cursors(nodes.rows.stored)) == []
