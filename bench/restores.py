"""Restore random moments of random histories from an archive, and compare each with what was then.

    .venv/bin/python bench/restores.py [--histories N] [--steps N] [--numbers N] [--times N]

The histories are written by the code that serves databases (`tests/archive/written_history`): small
and large bodies, priorities, removals, databases that are deleted and made again, and a clock that
is set back and forth; archived as segments, which are merged, and bases. The first moment that
differs ends the run with a traceback. Printed are how many moments were restored, and seconds.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import secrets
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from tests.archive.restored import Check
from tests.archive.written_history import WrittenHistory


def main() -> None:
    """Write the histories one after the other, and restore moments of each."""
    options = parse()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    begin = time.monotonic()
    restored = absent = writes = 0
    for at in range(options.histories):
        with tempfile.TemporaryDirectory() as folder:
            history = WrittenHistory(pathlib.Path(folder), seed + at)
            history.run(options.steps)
            check = Check(history, pathlib.Path(folder) / "restored")
            tried = restore(
                check, options.numbers // options.histories, options.times // options.histories
            )
            restored, absent = restored + check.count, absent + tried - check.count
            writes += sum(len(life.moments) for each in history.lives.values() for life in each)
            history.close()
    seconds = time.monotonic() - begin
    print(f"{restored} moments of {writes:,} writes were restored as they were, ", end="")
    print(f"{absent} were rightly absent, in {seconds:.0f} s")


def restore(check: Check, numbers: int, times: int) -> int:
    """Restore moments by random numbers and times; return how many were tried."""
    history = check.history
    drawn = random.Random(history.random.random())
    moments = [
        (db, moment)
        for db, lives in history.lives.items()
        for life in lives
        for moment in life.moments
    ]
    for db, moment in drawn.choices(moments, k=numbers):
        check.sequence(db, moment.sequence)
    earliest = min(moment.ms for _, moment in moments)
    latest = max(moment.ms for _, moment in moments)
    for _ in range(times):
        db, moment = drawn.choice(moments)
        near = moment.ms + drawn.choice((-1, 0, 1, 700))
        check.time(db, drawn.choice((near, drawn.randrange(earliest, latest + 1))))
    return numbers + times


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--numbers", type=int, default=1000)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, help="that of a run that has failed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
