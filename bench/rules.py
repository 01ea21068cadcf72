"""Requests a second with rules and a token, beside the same requests without either.

    .venv/bin/python bench/rules.py [--seconds S] [--rounds N]

Two daemons share one core, the load has another. One has open rules and receives requests without a
token; the other has the rules below (a token, two captures, four validations that a PUT evaluates)
and receives requests with the token of a user whom they allow. Both are measured alternately, round
by round; medians and ratios are printed. `aim` is the least ratio to reach.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from load import measure
from servers import CONFIG, LOAD_CORE, put, serve_treedb

from treedbd.web.auth.jwt import mint

AIM = 0.8
SECRET = "0123456789abcdef" * 3
RULED = f'{CONFIG.replace("open.json", "rules.json")}secret_files = ["secret"]\n'
PROFILE = {"name": "Ada Lovelace", "age": 36, "mail": "ada@example.com"}
RULES: dict[str, Any] = {
    "apps": {
        "$app": {
            "users": {
                "$uid": {
                    ".read": "auth != null && auth.uid == $uid && auth.token.app == $app",
                    ".write": "auth != null && auth.uid == $uid && auth.token.app == $app"
                    " && root.child('apps').child($app).child('closed').val() != true",
                    "profile": {
                        ".validate": "newData.hasChildren(['name', 'age'])",
                        "name": {".validate": "newData.isString() && newData.val().length <= 100"},
                        "age": {".validate": "newData.isNumber() && newData.val() >= 0"},
                        "mail": {".validate": "newData.val().matches(/^[^@]+@[^@]+$/)"},
                        "$other": {".validate": False},
                    },
                }
            }
        }
    }
}
CASES = {
    "GET, 32 connections": (32, None),
    "PUT, 1 connection": (1, json.dumps(PROFILE)),
    "PUT, 32 connections": (32, json.dumps(PROFILE)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    rates: dict[tuple[str, bool], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as open_folder,
        tempfile.TemporaryDirectory() as ruled_folder,
        serve_treedb(open_folder) as open_base,
        serve_ruled(ruled_folder) as ruled_base,
    ):
        urls = {
            False: f"{open_base}/{place(1)}.json",
            True: f"{ruled_base}/{place(1)}.json?auth={make_token(1)}",
        }
        for url in urls.values():
            put(url, json.dumps(PROFILE))
        for _ in range(wanted.rounds):
            for name, (connections, body) in CASES.items():
                for is_ruled, url in urls.items():
                    rate = measure(url, connections, wanted.seconds, LOAD_CORE, body)
                    rates.setdefault((name, is_ruled), []).append(rate)
    report({case: statistics.median(found) for case, found in rates.items()})


def serve_ruled(folder: str) -> contextlib.AbstractContextManager[str]:
    """Run a daemon with the rules, within a block."""
    write_settings(folder, {"rules": RULES})
    return serve_treedb(folder, RULED)


def write_settings(folder: str, rules: object) -> None:
    """Write the files that `RULED` names."""
    Path(folder, "rules.json").write_text(json.dumps(rules))
    secret = Path(folder, "secret")
    secret.write_text(SECRET)
    secret.chmod(0o600)


def place(user: int) -> str:
    """Return the path of the profile of a user."""
    return f"apps/shop/users/u{user:07}/profile"


def make_token(user: int) -> str:
    """Return a token of a user, whom the rules allow to read and write what is the user's."""
    claims = {"uid": f"u{user:07}", "app": "shop"}
    return mint(SECRET.encode(), claims, now=time.time(), ttl_s=36_000)


def report(rates: dict[tuple[str, bool], float]) -> None:
    """Print the rates, and the ratio of each pair."""
    for name in CASES:
        without, ruled = rates[name, False], rates[name, True]
        print(
            f"{name:20} {without:8,.0f}/s open, {ruled:8,.0f}/s with rules and a token: "
            f"{ruled / without:.2f} (aim {AIM})"
        )


if __name__ == "__main__":
    main()
