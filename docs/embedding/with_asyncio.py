"""The tree in a program of asyncio: its coroutines are awaited in tasks.

Run it with `.venv/bin/python docs/embedding/with_asyncio.py`.
"""

import asyncio
from typing import Any

from twisted.internet import asyncioreactor

loop = asyncio.new_event_loop()
asyncioreactor.install(loop)  # before anything imports the reactor

from twisted.internet import reactor as installed_reactor  # noqa: E402

from treedbd import LocalDatabase, Settings, TreeService  # noqa: E402

reactor: Any = installed_reactor
SETTINGS = Settings.from_values(engine="memory", default_project="app", projects={"app": {}})


async def count(database: LocalDatabase, until: int) -> None:
    """Watch a counter until it is high enough."""
    async for event in database.watch("counter"):
        if event.data == until:
            print("counted to", event.data)
            return


async def main() -> None:
    """Run a service for as long as it is used."""
    service = TreeService(SETTINGS, reactor)
    service.privilegedStartService()
    service.startService()
    try:
        database = service.database("app")
        counting = asyncio.create_task(count(database, 10))
        adding = [database.transaction("counter", lambda n: (n or 0) + 1) for _ in range(10)]
        await asyncio.gather(counting, *adding)
    finally:
        await service.stopService().asFuture(asyncio.get_running_loop())
        reactor.stop()


if __name__ == "__main__":
    task = loop.create_task(main())
    reactor.run()
    task.result()
