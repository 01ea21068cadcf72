"""The database of an application as a shelf: filled, read and counted by a program.

Run it with `.venv/bin/python docs/shelf.py`. It fills a new data directory in a temporary folder
and reports; with the path of a database file it only reports.
"""

import sys
import tempfile
from pathlib import Path

from treedbd import open_shelf


def fill(file: Path) -> None:
    """Write three people; what was written is durable when the shelf is closed."""
    with open_shelf(file, "c") as shelf:
        shelf["people/ada"] = {"name": "Ada", "age": 36}
        shelf["people/alan"] = {"name": "Alan", "age": 41}
        shelf["people/tim"] = {"name": "Tim"}
        shelf["people/alan/age"] = 42
        del shelf["people/tim"]


def report(file: Path) -> None:
    """Print the people in key order; a daemon may serve the file meanwhile."""
    with open_shelf(file) as shelf:
        people = shelf.at("people")
        for key, person in people.items():
            print(key, person)
        print(len(people), "people;", "people/tim" in shelf, people.get("grace/age", "unknown"))


def main(folder: Path) -> None:
    """Fill and report."""
    file = folder / "demo" / "default.shelf"
    fill(file)
    report(file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
