"""The examples of `docs/rules.md`, parsed and evaluated."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest
import pytest_twisted

from tests.command import treedb
from tests.rules.evaluating import NOW, may_read, may_write, normal, place, view
from treedbd.database.requests import Caller
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.evaluate import explanation
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.tree import value as printing
from treedbd.tree.types import Change
from treedbd.web.rules import show_trial

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGE = DOCS / "rules.md"
EXAMPLES = re.findall(r"```json\n(\s*\{\s*\"rules\".*?)```", PAGE.read_text(), re.DOTALL)
ADA = {"uid": "ada"}


def example(word: str) -> RuleSet:
    (found,) = [text for text in EXAMPLES if word in text]
    return parse_rules(found)


def test_every_example_is_valid() -> None:
    assert len(EXAMPLES) == 7
    for text in EXAMPLES:
        parse_rules(text)


@pytest.mark.parametrize(
    ("changes", "auth", "allowed"),
    [
        ({"users/ada": {"name": "Ada", "age": 36}}, ADA, True),
        ({"users/ada": {"name": "Ada", "age": 36}}, {"uid": "eve"}, False),
        ({"users/ada": {"name": "Ada"}}, None, False),
        ({"users/ada": {"age": 36}}, ADA, False),
        ({"users/ada": {"name": "Ada", "mail": "a"}}, ADA, False),
        ({"users/ada": {"name": "A" * 101}}, ADA, False),
        ({"messages/1": {"from": "ada", "sent": NOW}}, ADA, True),
        ({"messages/1": {"from": "ada", "sent": NOW - 1}}, ADA, False),
        ({"messages/1": {"from": "eve", "sent": NOW}}, ADA, False),
    ],
)
def test_the_first_document_allows_the_documented_writes(
    changes: dict[str, Any], auth: Any, allowed: bool
) -> None:
    assert may_write(example('"users"'), changes, auth=auth) is allowed


def test_the_first_document_allows_the_documented_reads() -> None:
    rules = example('"users"')
    assert may_read(rules, "users/ada/name")
    assert not may_read(rules, "users/ada")
    assert may_read(rules, "users/ada", auth=ADA)
    assert may_read(rules, "messages", auth=ADA, query=QueryFacts(limit_to_last=100))
    assert not may_read(rules, "messages", auth=ADA, query=QueryFacts(limit_to_last=101))
    assert not may_read(rules, "messages", auth=ADA)


def test_the_indexes_are_those_that_the_page_describes() -> None:
    assert example("players").declared_indexes == {
        (("players",), "score"),
        (("players",), "team/name"),
        (("boards", None, "results"), ".value"),
    }


def test_the_recipes_work_as_documented() -> None:
    room = {"rooms": {"1": {"members": {"ada": True}}}}
    assert may_read(example("rooms"), "rooms/1", room, auth=ADA)
    assert not may_read(example("rooms"), "rooms/2", room, auth=ADA)
    news, roles = example("news"), {"roles": {"ada": "editor"}}
    assert may_write(news, {"news/1": "x"}, roles, auth=ADA)
    assert not may_write(news, {"news/1": "x"}, roles, auth={"uid": "eve"})
    visits = example("visits")
    assert may_write(visits, {"visits": 1})
    assert may_write(visits, {"visits": 8}, {"visits": 7})
    assert not may_write(visits, {"visits": 9}, {"visits": 7})
    assert not may_write(visits, {"visits": 2})
    inbox = example("inbox")
    assert may_write(inbox, {"inbox/1": "x"})
    assert not may_write(inbox, {"inbox/1": "y"}, {"inbox": {"1": "x"}})
    assert not may_write(inbox, {"inbox/1": None}, {"inbox": {"1": "x"}})
    assert not may_read(inbox, "inbox")
    device = {"token": {"device": "d7"}}
    assert may_write(example("readings"), {"readings/d7": 1}, auth=device)
    assert not may_write(example("readings"), {"readings/d8": 1}, auth=device)


def test_the_explanation_in_the_docs_is_the_real_one() -> None:
    shown, tried = re.findall(r"```json\n(\{\"allowed\".*?)```", PAGE.read_text(), re.DOTALL)
    context = Context({"uid": "eve"}, NOW, view(None))
    verdict = example('"users"').may_read(("users", "ada"), context, explain=True)
    assert (
        printing.compact(explanation(verdict, is_admin=False, auth=context.auth)).decode()
        == shown.strip()
    )
    context = Context({"uid": "ada"}, NOW, view({"users": {"ada": {"name": "Ada"}}}))
    change = Change(place("users/ada/age"), normal(-1))
    verdict = example('"users"').may_write([change], context, explain=True)
    assert show_trial(verdict, Caller({"uid": "ada"})) == json.loads(tried)


# The commands on the pages, and what they print.

WORSE = """{
  "rules": {
    "users": {"$uid": {
      ".write": "auth.uid = $uid"
    }}
  }
}
"""
COMMAND = re.compile(
    r"^    \$ treedb (rules (?:test|check) .+)\n((?:    (?!\$).*\n)+)", re.MULTILINE
)


def shown_commands(page: str) -> dict[str, str]:
    """Return the `rules test` and `rules check` commands of a page, with what they print."""
    text = (DOCS / page).read_text()
    found = COMMAND.findall(text)
    return {name: re.sub(r"^    ", "", output, flags=re.MULTILINE) for name, output in found}


@pytest.mark.parametrize(
    ("page", "command", "status"),
    [
        ("rules.md", "rules test shop.test.json", 1),
        ("rules.md", "rules test rules/chat.test.json --require-coverage", 0),
        ("command.md", "rules test chat.test.json", 0),
        ("command.md", "rules check worse.rules.json", 1),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_command_prints_what_the_page_shows(
    page: str, command: str, status: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (suite,) = re.findall(r"```json\n(\{\n  \"data\".*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.test.json").write_text(suite)
    (tmp_path / "shop.rules.json").write_text(EXAMPLES[0])
    (tmp_path / "worse.rules.json").write_text(WORSE)
    shutil.copytree(DOCS / "rules", tmp_path, dirs_exist_ok=True)
    shutil.copytree(DOCS / "rules", tmp_path / "rules")
    monkeypatch.chdir(tmp_path)
    result = await treedb(*command.split())
    assert result.status == status
    assert result.output.decode() + result.errors == shown_commands(page)[command]


def test_every_test_on_the_page_is_run() -> None:
    assert set(shown_commands("rules.md")) == {
        "rules test shop.test.json",
        "rules test rules/chat.test.json --require-coverage",
    }
