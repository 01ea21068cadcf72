"""Events as functions of Firebase receive them, of both of their generations.

The forms are those that the packages of functions read (`firebase-functions`, the functions
framework, the functions emulator). A function of the first generation receives `data` and
`context`; one of the second receives a CloudEvent in structured mode: its attributes and `data` are
one JSON object. In both, `data` is the value before a write and `delta` what has become of it, null
for what was removed; the packages join them to the value after it.

The type of an event is that of its hook: a function for all kinds receives `written`, whatever has
happened. A value that was too long has been cut: it is null, and `treedbcut` names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from treedbd.limits import FunctionLimits
from treedbd.names import DatabaseName
from treedbd.store.hooks import KINDS, Form, Hook
from treedbd.tree.types import Json

LOCATION: Final = "us-central1"
"""The location of databases: functions for it are those that the tools of Firebase expect."""
FIRST: Final = "providers/google.firebase.database/eventTypes/ref."
SECOND: Final = "google.firebase.database.ref.v1."
_DATA: Final = "type.googleapis.com/google.events.firebase.database.v1.ReferenceEventData"
_WRITTEN: Final = "written"
_VERBS: Final = {
    "created": "create",
    "updated": "update",
    "deleted": "delete",
    _WRITTEN: "write",
}
"""What the first generation calls the kinds of events."""
KIND_OF: Final = {
    **{SECOND + kind: kind for kind in _VERBS},
    **{FIRST + verb: kind for kind, verb in _VERBS.items()},
    **{f"google.firebase.database.ref.{verb}": kind for kind, verb in _VERBS.items()},
}
"""The kinds of events by all names of their types; `written` is all of them."""
UNNAMED: Final = re.compile(r"_[0-9]+")
"""The names of captures that were made because a function has given none."""


@attrs.frozen
class FunctionService:
    """Where functions are called, and what they are said of databases.

    `url` is that of what runs functions that have registered, empty for none; `host` is what
    follows the label of a database in its address.
    """

    url: str = ""
    host: str = "localhost"
    limits: FunctionLimits = attrs.field(factory=FunctionLimits)

    def is_called_by(self, hook: Hook) -> bool:
        """Return whether a hook calls a function here: the operator has chosen the address."""
        is_here = bool(self.url) and (hook.url or "").startswith(f"{self.url}/")
        return is_here and bool(hook.trigger)


def kind_shown(hook: Hook, kind: str) -> str:
    """Return the kind of an event as its hook has it: `written` if that is for all kinds."""
    return _WRITTEN if hook.kinds == frozenset(KINDS) else kind


def type_of(form: Form, kind: str) -> str:
    """Return the type of an event."""
    return SECOND + kind if form == "functions-2" else FIRST + _VERBS[kind]


def content_type(form: Form) -> str:
    """Return the media type of an event in a form."""
    return (
        "application/cloudevents+json; charset=utf-8"
        if form == "functions-2"
        else "application/json"
    )


def shape(hook: Hook, event: Mapping[str, Any], host: str) -> Json:
    """Return an event, as receivers of webhooks see it, in the form of its hook.

    `host` is what follows the label of the database in its address. The cost is that of the values.
    """
    if hook.form == "functions-2":
        return _shape_second(hook, event, host)
    return _shape_first(hook, event, host) if hook.form == "functions-1" else dict(event)


def is_final(hook: Hook, status: int) -> bool:
    """Return whether an event is not sent again after an answer.

    A function that has registered itself is called once: what it raises is its answer, as in the
    emulator, and one that is not there any more is not there the next time either. Only a call that
    was not answered is repeated, or one that the emulator could not take.
    """
    return 200 <= status < 300 or (bool(hook.trigger) and status not in (429, 502, 503, 504))


def _shape_first(hook: Hook, event: Mapping[str, Any], host: str) -> Json:
    name = DatabaseName(event["project"], event["database"])
    context: dict[str, Any] = {
        "eventId": event["id"],
        "timestamp": event["time"],
        "eventType": type_of(hook.form, kind_shown(hook, event["kind"])),
        "resource": f"projects/_/instances/{name.label}/refs{event['path']}",
        "domain": host,
        "auth": _auth_of(event),
    }
    if not any(map(UNNAMED.fullmatch, hook.on.names)):
        context["params"] = event["captures"]  # else the function finds them in the resource
    if event.get("cut"):
        context["treedbcut"] = ",".join(event["cut"])
    return {"context": context, "data": _data_of(event)}


def _auth_of(event: Mapping[str, Any]) -> Json:
    if event["admin"]:
        return {"admin": True}
    if event["uid"] is None:
        return {"admin": False}
    return {"admin": False, "variable": {"uid": event["uid"], "token": {}}}


def _shape_second(hook: Hook, event: Mapping[str, Any], host: str) -> Json:
    label = DatabaseName(event["project"], event["database"]).label
    ref = event["path"].strip("/")
    caller = {"authtype": "unauthenticated"}
    if event["admin"]:
        caller = {"authtype": "admin"}
    elif event["uid"] is not None:
        caller = {"authtype": "app_user", "authid": event["uid"]}
    shown = {
        "specversion": "1.0",
        "type": type_of(hook.form, kind_shown(hook, event["kind"])),
        "source": f"//firebasedatabase.googleapis.com/projects/_/locations/{LOCATION}"
        f"/instances/{label}",
        "subject": f"refs/{ref}",
        "id": event["id"],
        "time": event["time"],
        "datacontenttype": "application/json",
        "location": LOCATION,
        "instance": label,
        "firebasedatabasehost": host,
        "ref": ref,
        **caller,
        "data": {"@type": _DATA, **_data_of(event)},
    }
    return {**shown, "treedbcut": ",".join(event["cut"])} if event.get("cut") else shown


def _data_of(event: Mapping[str, Any]) -> dict[str, Json]:
    """Return the value before an event, and what has become of it.

    Some packages join only their outermost members, others all: so an inner object is given whole,
    with null for each member that is removed. Arrays are joined by no package: where there is a
    value before and after, they are objects.
    """
    before, after = event["before"], event["after"]
    if isinstance(before, dict | list) and isinstance(after, dict | list):
        before, after = _without_arrays(before), _without_arrays(after)
        return {"data": before, "delta": _join(before, after)}
    return {"data": before, "delta": after}


def _join(before: Any, after: Any) -> Any:
    """Return `after` with null for all members that only `before` has."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    joined: dict[str, Any] = dict.fromkeys(key for key in before if key not in after)
    for key, value in after.items():
        joined[key] = _join(before[key], value) if key in before else value
    return joined


def _without_arrays(value: Any) -> Any:
    """Return a value whose arrays are objects, with the numbers of their items as keys."""
    if isinstance(value, list):
        value = {str(at): item for at, item in enumerate(value) if item is not None}
    if isinstance(value, dict):
        return {key: _without_arrays(each) for key, each in value.items()}
    return value
