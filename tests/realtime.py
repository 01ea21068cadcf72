"""A strict client of the real-time protocol for tests.

It sends requests by number, and keeps what the server pushes in the order of arrival. Nothing is
read in the background: a test reads when it waits for something.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tests.rest import Headers
from tests.sse import Connects
from tests.websocket import PATIENCE_S, TARGET, WebSocket

PIECE_CHARACTERS: Final = 16_384
PIECE_BYTES: Final = 16_384
COUNT_CHARACTERS: Final = 6
BARRIER: Final = "zz-barrier"

Json = Any


class Push(NamedTuple):
    """A message that is not an answer: an action and its body."""

    action: str
    body: Any

    @property
    def keys(self) -> list[str]:
        """The keys of the path."""
        return [key for key in self.body["p"].split("/") if key]

    @property
    def change(self) -> tuple[str, str, Any, Any]:
        """The action, the path without slashes at its ends, the data and the tag (or None)."""
        return self.action, "/".join(self.keys), self.body["d"], self.body.get("t")


class Answer(NamedTuple):
    """The answer to a request."""

    status: str
    data: Any


class RealtimeClient(WebSocket):
    """A client of the protocol: it has received the hello.

    Attributes:
        hello: the body of the hello.
        received: what the server pushed and answered so far, in order of arrival.

    """

    def __init__(
        self, client: Connects, target: str = TARGET, headers: Headers = (), host: str | None = None
    ) -> None:
        """Connect and receive the hello, which has to be the first message."""
        super().__init__(client, target, headers, host)
        self.received: Final[list[Push | tuple[int, Answer]]] = []
        self._next_number = 1
        self._answers: Final[dict[int, Answer]] = {}
        self._controls: Final[list[Mapping[str, Any]]] = []
        envelope = self._next_envelope(PATIENCE_S)
        assert envelope["t"] == "c", envelope
        assert envelope["d"]["t"] == "h", envelope
        self.hello: Final[dict[str, Any]] = envelope["d"]["d"]

    @property
    def session(self) -> str:
        """The id of the session."""
        session: str = self.hello["s"]
        return session

    @property
    def pushed(self) -> list[Push]:
        """What the server pushed so far."""
        return [each for each in self.received if isinstance(each, Push)]

    def send_json(self, envelope: Json) -> None:
        """Send an envelope, cut into pieces as clients do."""
        self.send_long(json.dumps(envelope, ensure_ascii=False, separators=(",", ":")))

    def send_long(self, text: str) -> None:
        """Send a text in as many frames as it needs, after one with their number."""
        pieces = cut(text)
        if len(pieces) > 1:
            self.send_text(str(len(pieces)))
        for piece in pieces:
            self.send_text(piece)

    def send_request(self, action: str, body: Json = None) -> int:
        """Send a request and return its number."""
        number = self._next_number
        self._next_number += 1
        data = {"r": number, "a": action, "b": {} if body is None else body}
        self.send_json({"t": "d", "d": data})
        return number

    def await_answer(self, number: int, seconds: float = PATIENCE_S) -> Answer:
        """Receive until the answer to a request is there, and return it."""
        self._read_until(lambda: number in self._answers, seconds)
        return self._answers.pop(number)

    def request(self, action: str, body: Json = None, seconds: float = PATIENCE_S) -> Answer:
        """Send a request and return its answer."""
        return self.await_answer(self.send_request(action, body), seconds)

    def succeed(self, action: str, body: Json = None) -> Any:
        """Send a request that has to succeed; return the data of the answer."""
        answer = self.request(action, body)
        assert answer.status == "ok", (action, body, answer)
        return answer.data

    def listen(self, path: str, query: Json = None, tag: int | None = None) -> Any:
        """Listen to a value or a query; return the first value, after checking its place."""
        begin = len(self.received)
        body = {"p": path, "h": ""} | ({} if query is None else {"q": query, "t": tag})
        self.succeed("q", body)
        mine = [each for each in self._pushed_since(begin) if each.body.get("t") == tag]
        firsts = [each for each in mine if each.keys == [key for key in path.split("/") if key]]
        assert firsts, "There is no first value before the answer."
        assert firsts[-1].action == "d"
        return firsts[-1].body["d"]

    def put(self, path: str, value: Json) -> None:
        """Set a value."""
        self.succeed("p", {"p": path, "d": value})

    def get(self, path: str, query: Json = None) -> Any:
        """Return a value, or the result of a query."""
        return self.succeed("g", {"p": path} | ({} if query is None else {"q": query}))

    def next_push(self, seconds: float = PATIENCE_S) -> Push:
        """Receive until the server pushes a message, and return it."""
        begin = len(self.received)
        self._read_until(lambda: bool(self._pushed_since(begin)), seconds)
        return self._pushed_since(begin)[0]

    def read_until(self, is_so: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Receive until a condition holds; raise TimeoutError if it does not in time."""
        self._read_until(is_so, seconds)

    def read_available(self) -> None:
        """Receive what has arrived."""
        while self.has_data():
            self._keep(self._next_envelope(PATIENCE_S))

    def pushes_during(self, act: Callable[[], object]) -> list[Push]:
        """Return what is pushed from now until all changes that `act` made have arrived here.

        A write of this connection ends the wait: events of earlier commits precede its answer.
        """
        begin = len(self.received)
        act()
        self.put(BARRIER, begin)
        pushed = self._pushed_since(begin)
        return [each for each in pushed if "p" not in each.body or each.keys[-1:] != [BARRIER]]

    def ping(self) -> Mapping[str, Any]:
        """Send the ping of the protocol and return the control message that answers it."""
        count = len(self._controls)
        self.send_json({"t": "c", "d": {"t": "p", "d": {}}})
        self._read_until(lambda: len(self._controls) > count, PATIENCE_S)
        return self._controls[-1]

    def _pushed_since(self, begin: int) -> list[Push]:
        return [each for each in self.received[begin:] if isinstance(each, Push)]

    def _read_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            self._keep(self._next_envelope(end - time.monotonic()))

    def _keep(self, envelope: Mapping[str, Any]) -> None:
        data = envelope["d"]
        if envelope["t"] == "c":
            assert {"t", "d"} <= data.keys(), "A control message without `d` is dropped by clients."
            self._controls.append(data)
            return
        assert envelope["t"] == "d", envelope
        if "r" not in data:
            assert data.keys() == {"a", "b"}, data
            self.received.append(Push(data["a"], data["b"]))
            return
        answer = Answer(data["b"]["s"], data["b"].get("d"))
        assert data.keys() == {"r", "b"}, data
        assert data["r"] not in self._answers, "A request was answered twice."
        self._answers[data["r"]] = answer
        self.received.append((data["r"], answer))

    def _next_envelope(self, seconds: float) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self._next_message(seconds))
        return envelope

    def _next_message(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        text = self.next_text(seconds)
        if len(text) <= COUNT_CHARACTERS and text.isdecimal():
            count = int(text)
            assert count > 1, "Clients wait for ever after such a count."
            pieces = [self.next_text(end - time.monotonic()) for _ in range(count)]
            assert all(0 < len(piece.encode()) <= PIECE_BYTES for piece in pieces)
            return "".join(pieces)
        assert len(text.encode()) <= PIECE_BYTES, "A long message in one piece."
        return text


def cut(text: str) -> list[str]:
    """Return the pieces that a client cuts a message into."""
    starts = range(0, max(len(text), 1), PIECE_CHARACTERS)
    return [text[start : start + PIECE_CHARACTERS] for start in starts]
