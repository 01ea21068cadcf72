"""Fuzz one target for some minutes: `python -m tests.fuzz TARGET [--minutes N] [--seed N]`.

With atheris installed (`pip install atheris`) inputs are chosen by the code that they reach, else
they are random changes of the corpus. What is found is written to a file in the current folder.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys
import time

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["treedbd"]):
        from tests.fuzz.targets import CORPUS, TARGETS, Target, read_corpus
else:
    from tests.fuzz.targets import CORPUS, TARGETS, Target, read_corpus

from tests.fuzz.mutation import LONGEST, mutate


def main() -> None:
    """Fuzz the target that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plain", action="store_true", help="without atheris")
    options = parser.parse_args()
    target = TARGETS[options.target]
    if atheris is None or options.plain:
        run_plainly(options.target, target, options.minutes * 60, options.seed)
        return
    found = pathlib.Path(f"fuzz-{options.target}")
    found.mkdir(exist_ok=True)
    flags = [f"-max_total_time={int(options.minutes * 60)}", f"-max_len={LONGEST}", "-timeout=30"]
    flags += [f"-seed={options.seed}", f"-artifact_prefix={found}/"]
    atheris.Setup([sys.argv[0], *flags, str(found), str(CORPUS / options.target)], target.check)
    atheris.Fuzz()


def run_plainly(name: str, target: Target, seconds: float, seed: int) -> None:
    """Call a target with random inputs for so long; keep one that finds something, and raise."""
    until = time.monotonic() + seconds
    count = 0
    for data in mutate(read_corpus(name), target.tokens, seed):
        try:
            target.check(data)
        except BaseException:
            file = f"fuzz-{name}-{hashlib.sha256(data).hexdigest()[:12]}"
            pathlib.Path(file).write_bytes(data)
            print(f"{name}: {file} holds what was found after {count} inputs.")
            raise
        count += 1
        if time.monotonic() >= until:
            break
    print(f"{name}: {count} inputs in {seconds:.0f} s, nothing found; the seed was {seed}.")


if __name__ == "__main__":
    main()
