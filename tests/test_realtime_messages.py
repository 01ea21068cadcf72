"""Long messages of the real-time protocol, in pieces both ways, and counts that are wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from tests.realtime import PIECE_BYTES, PIECE_CHARACTERS, RealtimeClient, cut
from tests.rest import Client
from tests.websocket import SocketClosed
from tests.websocket_frames import CONTINUATION, PING, TEXT, print_frame

CHARACTERS = ("x", "é", "€", "\U0001f600")


def put_text(number: int, path: str, value: str) -> str:
    body = {"t": "d", "d": {"r": number, "a": "p", "b": {"p": path, "d": value}}}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def send_pieces(client: RealtimeClient, pieces: Sequence[str]) -> None:
    client.send_text(str(len(pieces)))
    for piece in pieces:
        client.send_text(piece)


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("offset", range(4))
def test_characters_at_the_cuts_stay_whole_both_ways(
    tree: Client, character: str, offset: int
) -> None:
    value = "." * offset + character * 40_000
    with RealtimeClient(tree) as client, RealtimeClient(tree) as other:
        other.listen("a")
        client.put("a", value)
        assert client.get("a") == value
        assert other.next_push().body["d"] == value
        assert tree.get("/a.json") == value


@pytest.mark.parametrize("around", range(-40, 5))
def test_messages_about_as_long_as_a_piece_arrive(tree: Client, around: int) -> None:
    """The client checks that no piece is too long, and that one piece has no count."""
    value = "x" * (PIECE_BYTES + around)
    with RealtimeClient(tree) as client:
        client.put("a", value)
        assert client.get("a") == value
        assert client.listen("a") == value


LONG_TEXTS = [
    '{"t":"d","d":{"r":%s,"a":"p","b":{"p":"a","d":"%s"}}}',
    '{"d":{"b":{"d":"%s","p":"a"},"a":"p","r":%s},"t":"d"}',
]


@pytest.mark.parametrize("size", [70_000, 400_000, 3_000_000])
@pytest.mark.parametrize("form", LONG_TEXTS)
def test_the_number_of_a_long_message_is_one_up_to_2_53(tree: Client, form: str, size: int) -> None:
    value = "x" * size

    def text_of(number: str) -> str:
        return form % ((number, value) if '"r":%s,' in form else (value, number))

    with RealtimeClient(tree) as client:
        for number in (0, 1, 2**53):
            client.send_long(text_of(str(number)))
            assert client.await_answer(number).status == "ok"
    assert tree.get("/a.json") == value
    tree.put("/a.json", None)
    for beyond in (str(2**53 + 1), "9" * 17, "9" * 40):
        with RealtimeClient(tree) as client:
            client.send_long(text_of(beyond))
            assert client.await_close() == 1008
    assert tree.get("/a.json") is None


def test_a_message_of_megabytes_arrives_in_each_direction(tree: Client) -> None:
    value = {f"k{at}": "é€" * 2000 for at in range(300)}
    with RealtimeClient(tree) as client:
        client.put("a", value)
        assert client.get("a") == value
        assert client.listen("a") == value


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("members", itertools.permutations("rab"), ids="".join)
def test_the_order_of_members_and_white_space_mean_nothing(
    tree: Client, members: tuple[str, ...], indent: int | None
) -> None:
    for size in (10, 70_000, 1_000_000):
        for at, order in enumerate(itertools.permutations("pdt")):
            value = f"{size} {at} ".ljust(size, "y")
            body = {key: {"p": "a", "d": value, "t": 1}[key] for key in order}
            data = {key: {"r": at, "a": "p", "b": body}[key] for key in members}
            for envelope in ({"t": "d", "d": data}, {"d": data, "t": "d"}):
                with RealtimeClient(tree) as client:
                    client.send_long(json.dumps(envelope, indent=indent))
                    assert client.await_answer(at).status == "ok", (size, order)
                    assert tree.get("/a.json") == value


@pytest.mark.parametrize("action", ["q", "g", "o", "om", "n", "oc", "s"])
def test_requests_that_are_no_writes_may_be_long(tree: Client, action: str) -> None:
    """Clients that keep data on disk send a hash for each part of it; values may be long."""
    hashes = {"hs": ["x" * 28] * 3000, "ps": [f"some/path/{at}" for at in range(2999)]}
    body = {"p": "a", "h": "x", "ch": hashes, "d": {"x": "y" * 100_000}, "c": "z"}
    with RealtimeClient(tree) as client:
        assert client.request(action, body).status == "ok"


def test_halves_of_a_surrogate_pair_become_replacement_characters(tree: Client) -> None:
    """A browser cuts between the units of UTF-16; each half arrives as U+FFFD."""
    text = put_text(1, "a", "x" * 20_000 + "\ufffd\ufffd")
    with RealtimeClient(tree) as client:
        client.send_long(text)
        assert client.await_answer(1).status == "ok"
        assert tree.get("/a.json").endswith("x\ufffd\ufffd")


def test_a_message_may_be_cut_anywhere_a_client_likes(tree: Client) -> None:
    text = put_text(1, "a", "12345é" * 10)
    with RealtimeClient(tree) as client:
        send_pieces(client, list(text))
        assert client.await_answer(1).status == "ok"
        assert tree.get("/a.json") == "12345é" * 10


def test_a_message_of_one_piece_may_be_announced(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        send_pieces(client, [put_text(1, "a", "x")])
        assert client.await_answer(1).status == "ok"


def test_an_empty_piece_counts(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        send_pieces(client, ["", put_text(1, "a", "x"), ""])
        assert client.await_answer(1).status == "ok"


def test_frames_in_fragments_are_joined(tree: Client) -> None:
    data = put_text(1, "a", "é€").encode()
    with RealtimeClient(tree) as client:
        client.send(print_frame(TEXT, data[:1], is_final=False))
        for at in range(1, len(data)):
            client.send(print_frame(CONTINUATION, data[at : at + 1], is_final=False))
        client.send(print_frame(PING, b"between"))
        client.send(print_frame(CONTINUATION))
        assert client.await_answer(1).status == "ok"
        assert tree.get("/a.json") == "é€"


def test_a_long_message_in_pieces_and_fragments_and_single_bytes_is_joined(tree: Client) -> None:
    pieces = cut(put_text(1, "a", "é" * 30_000))
    with RealtimeClient(tree) as client:
        client.send_text(str(len(pieces)))
        for piece in pieces:
            data = piece.encode()
            client.send(print_frame(TEXT, data[:7], is_final=False))
            frame = print_frame(CONTINUATION, data[7:])
            for at in range(10):
                client.send(frame[at : at + 1])
            client.send(frame[10:])
        assert client.await_answer(1).status == "ok"
        assert tree.get("/a.json") == "é" * 30_000


def test_a_number_between_the_pieces_is_a_piece(tree: Client) -> None:
    text = put_text(1, "a", "begin 77 end")
    before, _, after = text.partition("77")
    with RealtimeClient(tree) as client:
        send_pieces(client, [before, "77", after])
        assert client.await_answer(1).status == "ok"
        assert tree.get("/a.json") == "begin 77 end"


# Counts.


@pytest.mark.parametrize(
    "count", ["-1", "1.5", "1e3", "+3", " 3", "3 ", "0x3", "\u0663", "NaN", "null"]
)
def test_what_is_no_count_is_taken_for_a_message_and_refused(tree: Client, count: str) -> None:
    with RealtimeClient(tree) as client:
        client.send_text(count)
        assert client.await_close() == 1008


@pytest.mark.parametrize("count", ["999999", "0999999999999", "9" * 400])
def test_a_count_beyond_the_limit_closes_the_connection(tree: Client, count: str) -> None:
    with RealtimeClient(tree) as client:
        client.send_text(count)
        assert client.await_close() in (1008, 1009)


def test_pieces_that_are_no_message_close_the_connection(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        send_pieces(client, ["{", "}", "}"])
        assert client.await_close() == 1008


def test_a_keep_alive_between_the_pieces_is_not_lost_on_the_server(tree: Client) -> None:
    """Clients that are sending send no keep-alive; a piece that is `0` is a piece."""
    text = put_text(1, "a", "a 0 b")
    before, _, after = text.partition("0")
    with RealtimeClient(tree) as client:
        send_pieces(client, [before, "0", after])
        assert client.await_answer(1).status == "ok"


def test_a_client_that_leaves_between_pieces_changes_nothing(tree: Client) -> None:
    pieces = cut(put_text(1, "a", "x" * 3 * PIECE_CHARACTERS))
    with RealtimeClient(tree) as client:
        client.send_text(str(len(pieces)))
        for piece in pieces[:-1]:
            client.send_text(piece)
        client.leave()
    with RealtimeClient(tree) as client:
        client.put("b", 1)
        assert tree.get("/a.json") is None


def test_a_message_that_is_too_long_is_answered_and_the_connection_goes_on(tree: Client) -> None:
    """The answer names the request, whose number is at the front of the message."""
    with RealtimeClient(tree) as client:
        number = client.send_request("p", {"p": "a", "d": "x" * (17 * 1_048_576)})
        try:
            answer = client.await_answer(number)
        except SocketClosed as closed:
            raise AssertionError("The connection was closed.") from closed
        assert answer.status == "too_big"
        client.put("b", 1)
        assert tree.get("/a.json") is None
