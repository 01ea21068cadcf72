"""Responses are those that `/.openapi.json` describes: schemathesis sends what follows from it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.openapi_trial import SENDERS, SIMILAR_PATHS, Trial, put_rules

SEED = 20_261_124
ONE_OF_EACH_KIND = rf"{SIMILAR_PATHS}|^/\.(json|priority)"
LEFT_OUT_IN_SHORT = rf"{ONE_OF_EACH_KIND}|^/\.settings/(webhooks/|functionTriggers)"
GENERATED = ("anonymous", "user, in the dialect of Firebase")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("openapi")) as daemon:
        put_rules(daemon)
        yield daemon


@pytest.mark.parametrize("examples", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sender", GENERATED)
def test_generated_requests_get_the_responses_of_the_document(
    daemon: Daemon, tmp_path: pathlib.Path, sender: str, examples: int
) -> None:
    trial = Trial(SENDERS[sender], SEED, examples=examples, excluded=SIMILAR_PATHS)
    outcome = trial.run(daemon.http, tmp_path)
    assert outcome.status == 0, outcome.output
    assert outcome.cases > 50 * examples
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("without", ["HEAD", pytest.param(None, marks=pytest.mark.slow)])
def test_requests_at_each_edge_of_the_document_get_its_responses(
    daemon: Daemon, tmp_path: pathlib.Path, without: str | None
) -> None:
    excluded = LEFT_OUT_IN_SHORT if without else ONE_OF_EACH_KIND
    trial = Trial(SENDERS["admin"], SEED, "coverage", excluded=excluded, without=without)
    outcome = trial.run(daemon.http, tmp_path)
    assert outcome.status == 0, outcome.output
    assert outcome.cases > 1000
    assert "Traceback" not in daemon.log
