"""The office of a first: what it has accepted is durable before it says that it is superseded."""

from __future__ import annotations

import pathlib

from twisted.internet.defer import Deferred

from tests.database.catalogs import PROJECT, find, make_catalog, make_write
from tests.database.world import Disk
from treedbd.database.runtime import Runtime
from treedbd.standby.office import finish_writes


def test_writes_under_way_are_waited_for(tmp_path: pathlib.Path) -> None:
    disk, done = Disk(), list[str]()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    runtime = Runtime(clock, bytes, disk.run)

    def wait(name: str) -> None:
        waiting = Deferred.fromCoroutine(finish_writes(catalog, runtime))
        waiting.addCallback(lambda _: done.append(name))

    wait("nothing")
    assert done == ["nothing"]
    for name in ("a", "b"):
        find(catalog, name).write(make_write(1)).addCallback(lambda _: done.append("write"))
    clock.run()
    find(catalog, "b").write(make_write(2)).addCallback(lambda _: done.append("write"))
    wait("all")
    clock.run()
    assert done == ["nothing"]
    while disk.waiting:
        disk.finish()
        clock.run()
    assert done == ["nothing", "write", "write", "write", "all"]
    assert catalog.find_writing() == []
    catalog.close_at_once()
