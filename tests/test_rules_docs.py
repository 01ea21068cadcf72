"""The examples of `docs/rules.md`, parsed and evaluated."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from tests.rules.evaluating import NOW, may_read, may_write, view
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.tree import printing
from treedbd.web.explain import explanation

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "rules.md"
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
    (shown,) = re.findall(r"```json\n(\{\"allowed\".*?)```", PAGE.read_text(), re.DOTALL)
    context = Context({"uid": "eve"}, NOW, view(None))
    verdict = example('"users"').may_read(("users", "ada"), context, explain=True)
    assert (
        printing.compact(explanation(verdict, is_admin=False, auth=context.auth)).decode()
        == shown.strip()
    )
