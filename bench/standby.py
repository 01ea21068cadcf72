"""Whether a standby loses anything that it must not, however often the two daemons change places.

    .venv/bin/python bench/standby.py [--rounds N] [--kinds KIND,KIND] [--seed N]

In each round, under writes and with a stream at the standby, one thing happens: `cut` ends all
connections between the two, `kill_standby` and `kill_first` kill one by SIGKILL, `planned` promotes
the standby while the first runs, `unplanned` after that was killed; the old first then is the
standby. `tests/standby/rounds.py` says what must hold after each. The first failure ends the run,
with status 1, and both logs. Printed is how many rounds of each kind there were, and how long one
took at the median.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import statistics
import tempfile
import time

from tests.standby.rounds import KINDS, Rounds

_LOG_CHARACTERS = 4000


def run(rounds: Rounds, kinds: list[str]) -> dict[str, list[float]]:
    """Run a round of each kind in this order; return how long they took."""
    took: dict[str, list[float]] = {}
    for kind in kinds:
        begin = time.monotonic()
        rounds.run(kind)
        took.setdefault(kind, []).append(time.monotonic() - begin)
    return took


def main() -> None:
    """Run rounds, and print what there was."""
    parser = argparse.ArgumentParser(
        description="Change places, kill and cut a first and a standby."
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kinds = options.kinds.split(",")
    chosen = [chance.choice(kinds) for _ in range(options.rounds)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Rounds(pathlib.Path(folder), options.seed) as rounds,
    ):
        try:
            took = run(rounds, chosen)
        except BaseException:
            for name, place in (("first", rounds.first), ("standby", rounds.standby)):
                print(f"The log of the {name}:\n{place.daemon.log[-_LOG_CHARACTERS:]}")
            raise
    for kind, seconds in sorted(took.items()):
        print(f"{kind:12} {len(seconds):4} rounds, median {statistics.median(seconds):.1f} s")
    print(f"{options.rounds} rounds, nothing lost that was said to be there")


if __name__ == "__main__":
    main()
