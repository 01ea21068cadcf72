"""The state of a shell: which database, which place, as whom; and its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.data import JSON_HEADERS
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import Body, HttpClient
from treedbd.cli.options import Url, label_of
from treedbd.cli.options import resolve_path as resolve
from treedbd.cli.shell.printing import Screen
from treedbd.tree.path import format_path
from treedbd.tree.types import Path

MAX_LISTED_BYTES: Final = 64 * 1024 * 1024
_OVERRIDE: Final = "auth_variable_override"


@attrs.define
class ShellSession:
    """A shell's connection and its place.

    Attributes:
        root: the URL of the database.
        place: where relative paths begin.
        previous: where `cd -` goes.
        auth: the JSON that rules see as `auth`; None for what the token says.
        default_label: what the prompt calls a database whose URL does not name it.
        confirm: asks a question that is answered by yes or no; None if nobody can answer.
        identity: what is known of the token.
        on_change: is called when what was read may have changed.

    """

    client: HttpClient
    screen: Screen
    root: Url
    place: Path
    default_label: str = ""
    identity: str = ""
    confirm: Callable[[str], bool] | None = None
    on_change: Callable[[], None] | None = None
    previous: Path | None = None
    auth: str | None = None

    @property
    def label(self) -> str:
        """What the prompt calls the database."""
        return label_of(self.root, self.default_label)

    @property
    def location(self) -> str:
        """The database and the path, as in `demo:/users/ada`."""
        return f"{self.label}:{format_path(self.place)}"

    def resolve(self, text: str) -> Path:
        """Return the path that a text names; raise `CommandFailed`."""
        return resolve(text, self.place)

    def url_of(self, path: Path, parameters: dict[str, str] | None = None) -> Url:
        """Return the URL of a path, as whoever the shell is now."""
        url = self.root.below(path).to_json()
        if self.auth is not None:
            url = url.with_parameters({_OVERRIDE: self.auth})
        return url.with_parameters(parameters or {})

    def list_children(
        self, path: Path, limit: int, after: str | None = None, *, sized: bool = False
    ) -> Any:
        """Return some children by key, with `sized` the values of leaves and the sizes of others.

        What has no children is returned as it is. Raises `CommandFailed`.
        """
        return list_children(self.client, self.url_of(path), limit, after, sized=sized)

    def write(
        self, method: str, path: Path, value: str | None = None, *, is_silent: bool = True
    ) -> bytes:
        """Send a write; return the body of its response. Raises `CommandFailed`."""
        url = self.url_of(path, {"print": "silent"} if is_silent else {})
        body = None
        if value is not None:
            content = value.encode()
            body = Body((content,), len(content))
        headers = None if body is None else JSON_HEADERS
        try:
            return self.client.request(method, url, headers, body).content()
        finally:
            self.changed()

    def changed(self) -> None:
        """Note that what was read before may be different now."""
        if self.on_change is not None:
            self.on_change()


def list_children(
    client: HttpClient, url: Url, limit: int, after: str | None = None, *, sized: bool = False
) -> Any:
    """Read some children of the path of a URL by key, as `ShellSession.list_children` does."""
    parameters = {"shallow": "true", "limitToFirst": str(limit)}
    if sized:
        parameters["v"] = "2"
    if after is not None:
        parameters["startAfter"] = orjson.dumps(after).decode()
    response = client.request("GET", url.with_parameters(parameters))
    content = response.content_up_to(MAX_LISTED_BYTES)
    if content is None:
        raise CommandFailed("The values there are too large to be listed: use ls without -l.")
    return parse_response(content, url)


def parse_response(content: bytes, url: Url) -> Any:
    """Return the JSON of a response; raise `CommandFailed` if it is something else."""
    try:
        return orjson.loads(content)
    except ValueError:
        raise CommandFailed(f"The response of {url.origin} is not JSON.") from None
