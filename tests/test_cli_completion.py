"""Completion scripts: that shells accept them, and that they have all commands and options."""

from __future__ import annotations

import subprocess

import pytest

from tests.command import run_command
from treedbd.cli.parser import COMMANDS, SHELLS, make_script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_all_commands_and_their_options(shell: str) -> None:
    script = run_command("completion", shell).text
    assert not [name for name in COMMANDS if name not in script]
    for option in ("order-by", "if-match", "dry-run", "retry-for", "keep-alive"):
        assert option in script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_accepts_its_script(shell: str) -> None:
    done = subprocess.run(
        [shell, "-n"], input=make_script(shell), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("treedb exp", ["export"]),
        ("treedb get --sha", ["--shallow"]),
        ("treedb rules che", ["check"]),
        ("treedb rules put --dr", ["--dry-run"]),
        ("treedb completion fi", ["fish"]),
        ("treedb get x -o /dev/nul", ["/dev/null"]),
        ("treedb mv --fo", ["--force"]),
    ],
)
def test_bash_completes_a_word(typed: str, expected: list[str]) -> None:
    words = typed.split()
    quoted = " ".join(words)
    script = (
        f"{make_script('bash')}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE='{typed}'\n"
        f"COMP_POINT={len(typed)}\n"
        "name=$(complete -p treedb); name=${name##*-F }; name=${name%% *}\n"
        f"$name treedb {words[-1]} {words[-2]}\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-i"], input=script, capture_output=True, text=True, check=False
    )
    assert [line.strip() for line in done.stdout.splitlines() if line.strip()] == expected


def test_fish_completes_a_word() -> None:
    script = make_script("fish") + "\ncomplete -C 'treedb get --sha'\ncomplete -C 'treedb tran'\n"
    done = subprocess.run(["fish"], input=script, capture_output=True, text=True, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "--shallow",
        "transaction",
    ]
