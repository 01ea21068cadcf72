"""`docs/dependencies.md` names every dependency, with the floor that pyproject.toml has."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from tests.pages import DOCS

PAGE: Final = (DOCS / "dependencies.md").read_text()
PROJECT: Final = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
EXTRAS: Final = PROJECT["optional-dependencies"]


def floors(requirements: list[str]) -> dict[str, str]:
    """Return the floor of each requirement, by its name."""
    return {
        each.name: part.version
        for each in map(Requirement, requirements)
        for part in each.specifier
        if part.operator == ">="
    }


def rows(heading: str) -> dict[str, str]:
    """Return the second column of the table below a heading, by the package in the first."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", section, re.MULTILINE))


def test_the_page_has_each_dependency_and_its_floor() -> None:
    expected = floors(
        [
            *PROJECT["dependencies"],
            *(each for extra in ("opentelemetry", "postgresql", "s3") for each in EXTRAS[extra]),
        ]
    )
    assert rows("What each is for") == expected


def test_each_floor_is_above_the_vulnerabilities_that_the_page_names() -> None:
    fixed = rows("Floors for advisories")
    floor = floors([*PROJECT["dependencies"], *EXTRAS["opentelemetry"], *EXTRAS["test"]])
    assert len(fixed) >= 10
    too_low = [name for name, since in fixed.items() if Version(floor[name]) < Version(since)]
    assert too_low == []


def test_the_page_names_each_lock_file() -> None:
    named = set(re.findall(r"`(\w+\.txt)`", PAGE.partition("\n## What is installed\n")[2]))
    assert named == {file.name for file in (DOCS.parent / ".ci" / "locks").iterdir()}
