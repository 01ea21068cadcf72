"""A service in the process of the test, with one project in memory or on disk."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

from twisted.internet import reactor

from treedbd import Settings, TreeService

RULES = {
    "rules": {
        "public": {".read": True},
        "users": {
            "$uid": {
                ".read": "auth.uid == $uid",
                ".write": "auth.uid == $uid",
                "age": {".validate": "newData.isNumber()"},
            }
        },
        "beginning": {".read": "query.startAt == null && query.limitToFirst <= 2 && !query.where"},
        "shared": {".read": "root.child('open').val() == true", ".write": "auth != null"},
    }
}


def settings_in(folder: pathlib.Path, **values: Any) -> Settings:
    """Return settings of a project with rules, and others as given.

    The children of the key `volatile` are volatile, if it is given.
    """
    volatile = {values.pop("volatile", "-"): {"$id": {".volatile": True}}}
    (folder / "rules.json").write_text(json.dumps({"rules": RULES["rules"] | volatile}))
    project = {"rules_file": "rules.json", "databases": "*", **values.pop("project", {})}
    defaults = {"engine": "memory", "data": "data", "default_project": "app"}
    return Settings.from_values(folder=folder, projects={"app": project}, **(defaults | values))


@contextlib.asynccontextmanager
async def running(settings: Settings, **options: Any) -> AsyncIterator[TreeService]:
    """Run a service; it is stopped at the end."""
    service = TreeService(settings, reactor, **options)
    service.privilegedStartService()
    service.startService()
    try:
        yield service
    finally:
        await service.stopService()
