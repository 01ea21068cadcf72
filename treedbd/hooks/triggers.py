"""Functions of Firebase that register at the database, as hooks.

The functions emulator sends the *trigger* of each function: its name, a path, a type of events, a
topic that is not used, and for the second generation a pattern of databases. The name holds the
project and the key by which the emulator is called. The key ends with a generation, which is a
higher one each time the emulator has read all functions again: a trigger replaces those that differ
only in that.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import attrs

from treedbd.hooks.functions import FIRST, KIND_OF, SECOND, UNNAMED, kind_shown, type_of
from treedbd.limits import MAX_LABEL_CHARACTERS
from treedbd.store.hooks import KINDS, Hook
from treedbd.tree.pattern import InvalidPattern, PathPattern, parse_pattern
from treedbd.tree.types import InvalidData, Json

_NAME: Final = re.compile(
    r"projects/([A-Za-z0-9.:_-]{1,100})/locations/([A-Za-z0-9_-]{1,50})/(functions|triggers)"
    r"/([A-Za-z0-9._-]{1,200})"
)
_GENERATION: Final = re.compile(r"([a-z]+-[a-z]+[0-9]+-.+)-[0-9]+")
"""A key as the emulator makes them: region, name and generation."""
_INSTANCES: Final = re.compile(r"[a-z0-9*-]+")
_WHOLE_CAPTURE: Final = re.compile(r"\{([^{}/=]*)(?:=\*)?\}")
_CAPTURE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SLUG_CHARACTERS: Final = 30


@attrs.frozen
class FunctionTrigger:
    """A function that registers.

    Attributes:
        name: its name, with those of the project and of the location.
        on: the places whose events it is for.
        event: the type of these events.
        instances: the label of the database, or a pattern of labels, with `*` for any characters;
            None for the database that the request addresses.

    """

    name: str
    on: PathPattern
    event: str
    instances: str | None

    @property
    def is_pattern(self) -> bool:
        """Whether it is for all databases of a pattern."""
        return self.instances is not None and "*" in self.instances

    def make_hook(self, url: str, now_ms: int) -> Hook:
        """Return it as a hook; `url` is that of what runs functions."""
        kind = KIND_OF[self.event]
        project, _, _, key = _split(self.name)
        return Hook(
            name=_hook_name(self.name),
            on=self.on,
            kinds=frozenset(each for each in KINDS if kind in (each, "written")),
            url=f"{url}/functions/projects/{project}/triggers/{key}",
            form="functions-2" if self.event.startswith(SECOND) else "functions-1",
            trigger=self.name,
            created_ms=now_ms,
        )


def parse_trigger(json: Json) -> FunctionTrigger:
    """Return the function that a JSON object describes; raise `InvalidData`."""
    if not isinstance(json, dict):
        raise InvalidData("A function is an object with name, path and event.")
    name, path, event = (_text(json, member) for member in ("name", "path", "event"))
    _split(name)
    if event not in KIND_OF:
        raise InvalidData(
            f"event must be one of a database, such as {SECOND}created or {FIRST}create."
        )
    instances = json.get("namespacePattern")
    if instances is not None:
        instances = _parse_instances(_text(json, "namespacePattern"))
    try:
        on = _parse_path(path, is_second=event.startswith(SECOND))
    except InvalidPattern as error:
        raise InvalidData(f"The path of {name} is not valid: {error}") from None
    return FunctionTrigger(name, on, event, instances)


def show_trigger(hook: Hook) -> Json:
    """Return a function as it has registered."""
    project, _, _, key = _split(hook.trigger)
    names = iter(hook.on.names)
    keys = (each if each is not None else f"{{{next(names)}}}" for each in hook.on.keys)
    return {
        "name": hook.trigger,
        "path": "/" + "/".join(keys),
        "event": type_of(hook.form, kind_shown(hook, min(hook.kinds))),
        "topic": f"projects/{project}/topics/{key}",
    }


def _text(json: dict[str, Any], member: str) -> str:
    value = json.get(member)
    if not isinstance(value, str) or not value:
        raise InvalidData(f"A function must have {member}, a string.")
    return value


def _split(name: str) -> tuple[str, str, str, str]:
    """Return the project, the location, the collection and the key in a name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidData(
            "name must be projects/<project>/locations/<location>/triggers/<key>, or functions."
        )
    return found[1], found[2], found[3], found[4]


def _hook_name(name: str) -> str:
    """Return the name of the hook, which is the same for all generations of a function."""
    project, location, collection, key = _split(name)
    generation = _GENERATION.fullmatch(key)
    identity = key if generation is None else generation[1]
    full = "/".join((project, location, collection, identity))
    slug = re.sub(r"[^a-z0-9]+", "-", identity.lower())[:_SLUG_CHARACTERS].strip("-")
    return f"fn-{slug}-{hashlib.sha256(full.encode()).hexdigest()[:8]}".replace("--", "-")


def _parse_instances(text: str) -> str:
    """Return a pattern of labels; `{name=pattern}` is the pattern, `{name}` is any label."""
    found = re.fullmatch(r"\{[^{}/=]*(?:=([^{}/]*))?\}", text)
    plain = text if found is None else found[1] or "*"
    plain = re.sub(r"\*+", "*", plain.lower())
    if len(plain) > MAX_LABEL_CHARACTERS or not _INSTANCES.fullmatch(plain):
        raise InvalidData("namespacePattern must be the name of a database, or have * in it.")
    return plain


def _parse_path(path: str, *, is_second: bool) -> PathPattern:
    """Return the pattern of a path, whose captures are whole keys; raise `InvalidPattern`.

    The packages find what is captured by its place. So what has no name, or one that hooks cannot
    have, gets one (`UNNAMED`).
    """
    segments = []
    for at, segment in enumerate(each for each in path.split("/") if each):
        capture = _WHOLE_CAPTURE.fullmatch(segment)
        if capture is not None:
            is_named = _CAPTURE_NAME.fullmatch(capture[1]) and not UNNAMED.fullmatch(capture[1])
            segments.append(f"{{{capture[1] if is_named else f'_{at}'}}}")
        elif is_second and segment == "*":
            segments.append(f"{{_{at}}}")
        elif is_second and any(each in segment for each in "*{}"):
            raise InvalidPattern(
                f"{segment} is a part of a key, or several: only {{name}} and * for one whole key "
                "are possible."
            )
        else:
            segments.append(segment)
    return parse_pattern("/".join(segments), has_braces=True)
