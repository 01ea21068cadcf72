"""Runs schemathesis against the OpenAPI document that a daemon serves."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from tests.daemon import Daemon

PROJECT = pathlib.Path(__file__).parent.parent
DOCUMENT = "/.openapi.json"
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
)
LEFT_OUT = (
    *("negative_data_rejection", "positive_data_acceptance", "missing_required_header"),
    *("allow_header_conformance", "use_after_free", "ensure_resource_availability"),
    *("ignored_auth", "object_level_authorization"),
)
SIMILAR_PATHS = r"\{key2\}|/\.docs/[^i]"
"""Paths whose operations are those of others."""

RULES = {
    "rules": {
        ".read": True,
        ".write": "newData.exists()",
        "a": {".read": "auth != null", ".validate": "newData.isString() || newData.hasChildren()"},
    }
}
_GENERATED = re.compile(r"^ +([0-9,]+) generated", re.MULTILINE)

# At `/`, and for priorities, methods that others have are errors in the request: 404 and 400.
_CONFIG = """
[[operations]]
include-path-regex = '^/$|priority'
checks.unsupported_method.enabled = false

[checks]
"""


@attrs.frozen
class Sender:
    """Who sends the requests: a header that each has, and parameters of each query."""

    header: str | None = None
    parameters: Mapping[str, str] = {}


SENDERS: Final = {
    "anonymous": Sender(),
    "admin": Sender(parameters={"auth": "owner"}),
    "admin, in the dialect of Firebase": Sender("Authorization: Bearer owner"),
    "user, in the dialect of Firebase": Sender(
        "Authorization: Bearer owner", {"auth_variable_override": '{"uid":"ada"}'}
    ),
}


def put_rules(daemon: Daemon) -> None:
    """Put rules in force that deny something, in a daemon in development mode."""
    response = daemon.request("PUT", "/.settings/rules.json?auth=owner", json.dumps(RULES))
    assert response.status == 200, response


@attrs.frozen
class Trial:
    """One run: as whom, and how much.

    `phases` are those of schemathesis, `examples` is how many requests it generates at most for
    each operation. Paths that match the expression `excluded` are left out, and the method
    `without`. `seconds` bounds the whole run, `rate` is requests a second.
    """

    sender: Sender
    seed: int
    phases: str = "fuzzing"
    examples: int = 10
    excluded: str | None = None
    without: str | None = None
    seconds: int | None = None
    rate: int | None = None

    def run(self, url: str, folder: pathlib.Path) -> Outcome:
        """Run schemathesis in `folder`, against the daemon at `url`."""
        chosen = [*((name, "true") for name in CHECKS), *((name, "false") for name in LEFT_OUT)]
        lines = [f"{name}.enabled = {is_enabled}\n" for name, is_enabled in chosen]
        (folder / "schemathesis.toml").write_text(_CONFIG + "".join(lines))
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", url + DOCUMENT, *self._flags()],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(PROJECT),
                "SCHEMATHESIS_HOOKS": "tests.openapi_hooks",
                "TREEDB_TRIAL_PARAMETERS": json.dumps(dict(self.sender.parameters)),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout)

    def _flags(self) -> list[str]:
        flags = ["--phases", self.phases]
        flags += ["--max-examples", str(self.examples), "--seed", str(self.seed)]
        flags += ["--generation-database", "none", "--no-color", "--warnings", "off"]
        flags += ["--continue-on-failure"]
        # A busy machine is no failure.
        flags += ["--request-timeout", "60", "--suppress-health-check", "all"]
        if self.sender.header is not None:
            flags += ["--header", self.sender.header]
        if self.excluded is not None:
            flags += ["--exclude-path-regex", self.excluded]
        if self.without is not None:
            flags += ["--exclude-method", self.without]
        if self.seconds is not None:
            flags += ["--max-time", str(self.seconds)]
        if self.rate is not None:
            flags += ["--rate-limit", f"{self.rate}/s"]
        return flags


class Outcome(NamedTuple):
    """How schemathesis has ended, and what it has printed: of each failure a line for curl."""

    status: int
    output: str

    @property
    def cases(self) -> int:
        """How many requests schemathesis has generated."""
        found = _GENERATED.search(self.output)
        return 0 if found is None else int(found[1].replace(",", ""))
