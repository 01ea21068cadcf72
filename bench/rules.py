"""Requests a second with rules and a token, beside the same requests without either.

    .venv/bin/python bench/rules.py [--seconds S] [--rounds N]

Two daemons share one core, the load has another. One has open rules and receives requests without a
token; the other has the rules below (a token, two captures, four validations that a PUT evaluates)
and receives requests with the token of a user whom they allow. Both are measured alternately, round
by round; medians and ratios are printed. `aim` is the least ratio to reach.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from load import measure
from servers import LOAD_CORE, serve_treedb

from treedbd.web.auth.jwt import derive_project_secret, ensure_development_secret, mint

AIM = 0.8
PLACE = "apps/shop/users/u0000001/profile"
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
        serve_treedb(ruled_folder) as ruled_base,
    ):
        for base in (open_base, ruled_base):
            put_as_owner(f"{base}/{PLACE}.json", PROFILE)
        put_as_owner(f"{ruled_base}/.settings/rules.json", {"rules": RULES})
        urls = {
            False: f"{open_base}/{PLACE}.json",
            True: f"{ruled_base}/{PLACE}.json?auth={make_token(Path(ruled_folder))}",
        }
        for _ in range(wanted.rounds):
            for name, (connections, body) in CASES.items():
                for is_ruled, url in urls.items():
                    rate = measure(url, connections, wanted.seconds, LOAD_CORE, body)
                    rates.setdefault((name, is_ruled), []).append(rate)
    report({case: statistics.median(found) for case, found in rates.items()})


def make_token(folder: Path) -> str:
    """Return a token of the user whom the rules allow."""
    secret = derive_project_secret(ensure_development_secret(folder), "demo")
    return mint(secret, {"uid": "u0000001", "app": "shop"}, now=time.time(), ttl_s=3600)


def put_as_owner(url: str, json_value: Any) -> None:
    """Write one value as an admin."""
    headers = {"Authorization": "Bearer owner"}
    request = urllib.request.Request(url, json.dumps(json_value).encode(), headers, method="PUT")
    urllib.request.urlopen(request).close()


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
