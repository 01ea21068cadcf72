"""`treedb transaction`: expressions, errors, and other writers."""

from __future__ import annotations

import json

import pytest
import pytest_twisted

from tests.command import error_of, output_of, result_of, run_command, start, treedb
from tests.daemon import Daemon


@pytest.fixture
def url(shared_daemon: Daemon, request: pytest.FixtureRequest) -> str:
    """The URL of a path that no other test uses."""
    name = request.node.name.partition("[")[0].replace("_", "-")[-60:].strip("-")
    return shared_daemon.http.replace("127.0.0.1", f"{name}.localhost") + "/v"


@pytest_twisted.ensureDeferred
async def test_an_expression_changes_the_present_value(url: str) -> None:
    assert await output_of("transaction", url, ". + 1") == "1"
    assert await output_of("transaction", url, ". + 1") == "2"
    assert await output_of("transaction", url, '{"n": .}') == '{"n":2}'
    assert await output_of("transaction", url, '.l += ["é"]') == '{"l":["é"],"n":2}'
    found = json.loads(await output_of("transaction", url, "del(.l)", "--json"))
    assert found == {
        "value": {"n": 2},
        "etag": await output_of("get", url, "--etag"),
        "tries": 1,
    }
    assert (await treedb("transaction", url, "3", "--silent")).output == b""
    assert await output_of("transaction", url, "null") == "null"


@pytest_twisted.ensureDeferred
async def test_nothing_is_written_for_no_result(url: str) -> None:
    await output_of("set", url, "7")
    done = await treedb("transaction", url, "if . > 5 then empty else . + 1 end")
    assert (done.status, done.output) == (0, b"")
    assert "nothing was written" in done.errors
    assert await output_of("get", url) == "7"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (". +", "The expression fails: syntax error"),
        (".a.b", "The expression fails: Cannot index number with"),
        ('error("no")', "The expression fails: no."),
        ("1, 2", "The expression gave several values"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_error_of_the_expression_is_one_sentence(
    url: str, expression: str, reason: str
) -> None:
    await output_of("set", url, "7")
    assert (await error_of("transaction", url, expression)).startswith(reason)
    assert await output_of("get", url) == "7"


@pytest_twisted.ensureDeferred
async def test_an_integer_that_would_be_rounded_is_refused(url: str) -> None:
    await output_of("set", url, '{"a":[9007199254740993],"n":1}')
    error = await error_of("transaction", url, ".n += 1")
    assert error == "The value has the integer 9007199254740993, which jq would round."


@pytest_twisted.ensureDeferred
async def test_priorities_are_kept_on_request(url: str) -> None:
    await output_of("set", url, '{"a":{".value":1,".priority":2}}')
    assert await output_of("transaction", url, ".b = 1", "--export")
    assert json.loads(await output_of("get", url, "--export")) == {
        "a": {".value": 1, ".priority": 2},
        "b": 1,
    }


def test_increments_of_several_processes_are_all_counted(url: str) -> None:
    words = ["transaction", url, ". + 1", "--tries", "1000", "--silent"]
    for _ in range(2):
        running = [start(words) for _ in range(4)]
        assert [result_of(each) for each in running] == [(0, b"", "")] * 4
    assert run_command("get", url).text == "8"


@pytest_twisted.ensureDeferred
async def test_it_gives_up_after_the_last_try(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await output_of("set", url, "1")

    def write_between(_: object, value: bytes, __: object) -> bytes:
        assert run_command("set", url, f"{int(value) + 10}", "--silent").status == 0
        return b"0"

    monkeypatch.setattr("treedbd.cli.data._evaluate_jq", write_between)
    error = await error_of("transaction", url, ".", "--tries", "2")
    assert error == f"Others have changed {url} each time, 2 times: nothing was written."
    assert await output_of("get", url) == "21"
