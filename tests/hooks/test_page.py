"""The receivers that `docs/webhooks.md` shows verify what is sent, and refuse anything else."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.hooks.world import NAME, make_hook
from tests.pages import read_blocks
from treedbd.hooks.message import Message, headers_of, make_test

SECRET = "s" * 32


def message() -> Message:
    return make_test(make_hook(), NAME, 0, "x")


def sent(*secrets: str, seconds: float = 0.0) -> dict[str, str]:
    now_ms = round((time.time() + seconds) * 1000)
    return dict(headers_of(message(), secrets, now_ms, 1))


@pytest.fixture(scope="module")
def is_genuine() -> Any:
    (block,) = read_blocks("webhooks.md", "python")
    names: dict[str, Any] = {}
    exec(block.text, names)  # the page of this product
    return names["is_genuine"]


def test_the_receiver_in_python_verifies_what_is_sent(is_genuine: Any) -> None:
    body = message().body
    assert is_genuine(sent(SECRET), body, SECRET)
    assert is_genuine(sent("n" * 32, SECRET), body, SECRET)
    assert not is_genuine(sent("n" * 32), body, SECRET)
    assert not is_genuine(sent(SECRET), body + b" ", SECRET)
    assert not is_genuine(sent(SECRET, seconds=-400), body, SECRET)
    changed = sent(SECRET)
    changed["X-TreeDB-Timestamp"] = str(int(changed["X-TreeDB-Timestamp"]) - 1)
    assert not is_genuine(changed, body, SECRET)
