"""Tokens from the command line: their user, kind and lifetime."""

from __future__ import annotations

import os
import pathlib
import re
import time
from typing import Any

import pytest

from tests.command import run_command
from treedbd.cli.main import main
from treedbd.web.auth.jwt import (
    DEVELOPMENT_SECRET,
    BadToken,
    derive_project_secret,
    parse,
    verify_by_secret,
)

FIRST, SECOND = b"first" * 8, b"second" * 8
CONFIG = """
[projects.shop]
secret_files = ["new.secret", "old.secret"]
[[projects.shop.providers]]
issuer = "https://accounts.example.com"
audience = "shop"
[projects.bare]
[projects.short]
secret_files = ["short.secret"]
"""
NOTHING: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.secret").write_bytes(FIRST + b"\n")
    (tmp_path / "old.secret").write_bytes(SECOND)
    (tmp_path / "short.secret").write_bytes(b"short")
    (tmp_path / "treedb.toml").write_text(CONFIG)
    return tmp_path


def mint_claims(capsys: pytest.CaptureFixture[str], *words: str, secret: bytes = FIRST) -> Any:
    """Return the claims of the token that a command prints."""
    command = ["token", "--config", "treedb.toml", "--project", "shop", "--uid", "ada", *words]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    token = parse(captured.out.removesuffix("\n"))
    assert verify_by_secret(token, [secret]) == secret
    return token.claims


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", *words]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("treedb: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_token_is_signed_by_the_first_secret_and_valid_for_an_hour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = time.time()
    claims = mint_claims(capsys)
    assert set(claims) == {"uid", "iat", "exp"}
    assert claims["uid"] == "ada"
    assert before - 1 <= claims["iat"] <= time.time()
    assert claims["exp"] - claims["iat"] == 3600


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("5min", 300), ("2h", 7200), ("7d", 604_800)]
)
def test_a_token_expires_after_the_given_time(
    capsys: pytest.CaptureFixture[str], text: str, seconds: int
) -> None:
    claims = mint_claims(capsys, "--ttl", text)
    assert claims["exp"] - claims["iat"] == seconds
    assert type(claims["exp"]) is int


def test_a_token_never_expires_only_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert "exp" not in mint_claims(capsys, "--ttl", "never")


def test_claims_are_merged_and_options_win(capsys: pytest.CaptureFixture[str]) -> None:
    claims_json = '{"uid": "eve", "provider": "robots", "roles": {"editor": true}, "iat": 7}'
    claims = mint_claims(capsys, "--claims", claims_json, "--admin", "--ttl", "never")
    assert claims == {
        "uid": "ada",
        "provider": "robots",
        "roles": {"editor": True},
        "iat": 7,
        "admin": True,
    }


def test_a_token_is_that_of_an_admin_only_if_requested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "admin" not in mint_claims(capsys)
    assert mint_claims(capsys, "--admin")["admin"] is True


def test_an_admin_may_only_read_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    claims = mint_claims(capsys, "--admin", "--read-only")
    assert (claims["admin"], claims["read_only"]) == (True, True)
    assert "read_only" not in mint_claims(capsys, "--admin")
    assert mint_claims(capsys, "--claims", '{"read_only": "x"}')["read_only"] == "x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--claims", '{"role": "editor", "admin": true}'], "must not have admin: --admin makes"),
        (["--admin", "--claims", '{"read_only": false}'], "must not have read_only: --read-only"),
        (["--read-only"], "argument --read-only: only with --admin"),
    ],
)
def test_only_options_make_an_admin_and_errors_say_which(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    command = ["token", "--config", "treedb.toml", "--project", "shop", "--uid", "ada"]
    with pytest.raises(SystemExit) as ended:
        main([*command, *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_exp_in_the_claims_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert mint_claims(capsys, "--claims", '{"exp": 4102444800}')["exp"] == 4_102_444_800


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--project", "shop"],
        ["--uid", "ada"],
        *(
            ["--project", "shop", "--uid", "ada", *more]
            for more in (
                ["more"],
                ["--adm"],
                ["--secret", "x"],
                ["--ttl", "0s"],
                ["--ttl", "1"],
                ["--ttl", "1w"],
                ["--ttl", "-1h"],
                ["--ttl", "1.5h"],
                ["--ttl", "٣h"],
                ["--ttl", "9999999999d"],
                ["--claims", "{"],
                ["--claims", "[]"],
                ["--claims", "NaN"],
                ["--claims", '{"admin": true}'],
                ["--claims", '{"admin": false}', "--admin"],
                ["--ttl", "1h", "--claims", '{"exp": 4102444800}'],
            )
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["token", "--config", "treedb.toml", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search("^treedb( token)?: error: ", captured.err, re.MULTILINE)


def test_the_secret_of_a_project_must_exist_and_be_valid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = ["--config", "treedb.toml", "--uid", "ada", "--project"]
    assert "no project none; the configured projects: shop, bare, short" in error_of(
        capsys, *config, "none"
    )
    assert "bare has no secret" in error_of(capsys, *config, "bare")
    short = error_of(capsys, *config, "short")
    assert "treedb.toml: projects.short.secret_files names " in short
    assert "short.secret, which has 5 bytes" in short
    pathlib.Path("new.secret").unlink()
    assert "new.secret, which cannot be read" in error_of(capsys, *config, "shop")


def test_claims_that_no_daemon_accepts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    deep = '{"a":' * 40 + "1" + "}" * 40
    words = ["--config", "treedb.toml", "--uid", "ada", "--project"]
    for claims, reason in (
        (deep, "nested deeper"),
        ('{"exp": "x"}', "exp must be a number"),
        ('{"exp": "x", "v": 0, "d": 1}', "must be"),
        ('{"exp": null}', "exp must be a number"),
        ('{"nbf": true}', "nbf must be a number"),
        ('{"iat": 1e300}', "iat must be a number"),
        ('{"v": 0, "d": 1}', "its d must be a JSON object"),
        ('{"exp": 1}', "expired"),
        ('{"exp": 4102444800, "nbf": 4102448400}', "expired"),
        ('{"iss": "https://accounts.example.com"}', "iss is that of a provider"),
    ):
        assert reason in error_of(capsys, *words, "shop", "--claims", claims)


def test_a_token_may_become_valid_later(capsys: pytest.CaptureFixture[str]) -> None:
    claims = mint_claims(capsys, "--claims", '{"nbf": 4102444800, "iss": "us"}', "--ttl", "never")
    assert (claims["nbf"], claims["iss"]) == (4_102_444_800, "us")


def test_a_configuration_that_cannot_be_read_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--uid", "ada", "--project", "shop"]
    assert "none.toml: cannot be read (No such file" in error_of(
        capsys, "--config", "none.toml", *words
    )


def test_the_configuration_may_precede_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--config", "treedb.toml", "token", "--project", "shop", "--uid", "ada"]) == 0
    token = parse(capsys.readouterr().out.removesuffix("\n"))
    assert verify_by_secret(token, [FIRST]) == FIRST


@pytest.mark.parametrize("options", [[], ["--data", "elsewhere"]])
def test_development_mode_has_a_secret_for_every_project(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    data = folder / (options[1] if options else "treedb-data")
    for project in ("demo", "shop"):
        assert main(["token", "--project", project, "--uid", "ada", *options]) == 0
        captured = capsys.readouterr()
        secret = (data / DEVELOPMENT_SECRET).read_bytes()
        minted = parse(captured.out.removesuffix("\n"))
        assert verify_by_secret(minted, [derive_project_secret(secret, project)])
        with pytest.raises(BadToken):
            verify_by_secret(minted, [secret, derive_project_secret(secret, "else")])
        # The first command created the secret, and warns: the directory may be the wrong one.
        assert captured.err.count("\n") == (project == "demo")
        assert secret.decode() not in captured.err


def test_no_secret_is_printed(folder: pathlib.Path) -> None:
    words = ["--project", "shop", "--uid", "ada", "--config", "treedb.toml"]
    done = run_command("token", *words, "--claims", "-", stdin=b'{"a": 1}', folder=folder)
    assert parse(done.text).claims["a"] == 1
    os.chmod(folder / "new.secret", 0o644)
    everything = done.output + done.errors.encode()
    assert FIRST not in everything
    assert SECOND not in everything
