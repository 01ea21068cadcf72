"""Daemons for the SDKs that use a WebSocket, and the scripts that call everything in an SDK.

One daemon is in emulator mode without TLS, the other has a domain and TLS. Both have the project
`live` with `RULES`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tests.clients.harness import HERE, Domain, run_node, secret_of, sign_token
from tests.daemon import Daemon

PROJECT: Final = "live"
RULES: Final = """{
  "rules": {
    "work": {
      ".read": true, ".write": true,
      "number": {".validate": "newData.isNumber()"}
    },
    "users": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}}
  }
}
"""
EMULATOR: Final = f"""
emulator = true
[projects.{PROJECT}]
secret_files = ["{PROJECT}.secret"]
"""


def emulator(folder: pathlib.Path, listen: str = "tcp:0:interface=127.0.0.1") -> Iterator[Daemon]:
    """Run a daemon in emulator mode."""
    (folder / f"{PROJECT}.secret").write_text(secret_of(PROJECT))
    with Daemon(folder, config=EMULATOR, listen=[listen]) as running:
        put_rules(running, f"/.settings/rules.json?ns={PROJECT}")
        yield running


def put_rules(daemon: Daemon, target: str, host: str | None = None) -> None:
    """Put `RULES`, as an admin."""
    headers = {"Authorization": f"Bearer {sign_token(PROJECT, admin=True)}"}
    if host is not None:
        headers["Host"] = host
    assert daemon.request("PUT", target, RULES, headers, secure=host is not None).status == 200


def plain_variables(daemon: Daemon) -> dict[str, str]:
    """Return what a script receives of a daemon in emulator mode."""
    return {
        "PLAY_NS": PROJECT,
        "PLAY_SECRET": secret_of(PROJECT),
        "PLAY_URL": f"{daemon.http}/?ns={PROJECT}",
        "PLAY_EMULATOR": urlsplit(daemon.http).netloc,
    }


def secure_variables(domain: Domain) -> dict[str, str]:
    """Return what a script receives of a daemon with a domain and TLS."""
    put_rules(domain, "/.settings/rules.json", urlsplit(domain.url(PROJECT)).netloc)
    return {
        "NODE_EXTRA_CA_CERTS": str(domain.ca),
        "PLAY_NS": PROJECT,
        "PLAY_SECRET": secret_of(PROJECT),
        "PLAY_URL": domain.url(PROJECT),
    }


def check_calls(script: str, folder: pathlib.Path, variables: Mapping[str, str]) -> None:
    """Run a script of `sdk`; AssertionError if a call fails, or if it leaves out one there is."""
    output = run_node([str(HERE / "sdk" / script)], folder, variables)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    failed = [row for row in found["verdicts"] if row["verdict"] != "ok"]
    assert not failed, "\n\n".join(f"{row['promise']}\n{row['verdict']}" for row in failed)
    assert not found["missing"], found["missing"]
    assert found["verdicts"]
