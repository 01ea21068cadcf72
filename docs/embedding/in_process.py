"""Reading, writing and watching in the process of the program, without a socket.

Run it with `.venv/bin/python docs/embedding/in_process.py`.
"""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from treedbd import ConditionFailed, LocalDatabase, Settings, TreeService

SETTINGS = Settings.from_values(engine="memory", default_project="app", projects={"app": {}})


async def use(database: LocalDatabase) -> None:
    """Write some values, and print what is read and watched."""
    async with database.watch("people") as events:
        await database.put("people/ada", {"name": "Ada", "age": 36})
        await database.patch("people", {"ada/age": 37, "alan": {"name": "Alan", "age": 41}})
        print(await database.get("people", order_by="age", limit_to_last=1))
        print(await database.transaction("visits", lambda count: (count or 0) + 1))

        tagged = await database.get_with_etag("people/ada/age")
        await database.put("people/ada/age", 38)
        try:
            await database.put("people/ada/age", 0, if_match=tagged.etag)
        except ConditionFailed as failed:
            print("it is", failed.current)

        async for event in events:
            print(event.kind, event.path, event.data)
            if event.path == "/ada/age":
                break


async def main(reactor: Any) -> None:
    """Run a service for as long as it is used."""
    service = TreeService(SETTINGS, reactor)
    service.privilegedStartService()
    service.startService()
    try:
        await use(service.database("app"))
    finally:
        await service.stopService()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor)))
