"""`python -m benchmarks`: a table of our costs, next to baselines measured in the same run."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import counts
from benchmarks.bare import BareWriter, SealingWriter
from benchmarks.calling import tool_calls
from benchmarks.figure import Figure, table
from benchmarks.hooking import webhooks
from benchmarks.settling import lifecycles, settle_to_resumed
from benchmarks.waiting import bytes_each, register_and_wake

SECONDS = {"waking": 15.0, "settling": 25.0, "lifecycles": 35.0, "webhooks": 25.0, "calls": 50.0}
_QUICK = 6  # divides the duration


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes instead of six")
    shorter = _QUICK if parser.parse_args().quick else 1
    figures: list[Figure] = []
    for figure in measure({name: seconds / shorter for name, seconds in SECONDS.items()}):
        figures.append(figure)
        print(f"{figure.what}: {figure.ratio:.2f}", file=sys.stderr)
    print(table(figures))
    print()
    print(asyncio.run(counts.table()))


def measure(seconds: dict[str, float]) -> Iterator[Figure]:
    """Yield each line as it is measured. Files are in a temporary folder."""
    yield bytes_each()
    yield register_and_wake(seconds=seconds["waking"])
    with tempfile.TemporaryDirectory() as folder:
        yield asyncio.run(settle_to_resumed(Path(folder), seconds=seconds["settling"]))
    for writes in (None, SealingWriter, BareWriter):
        with tempfile.TemporaryDirectory() as folder:
            seconds_each = seconds["lifecycles"] / 3
            yield asyncio.run(lifecycles(Path(folder), writes=writes, seconds=seconds_each))
    yield asyncio.run(webhooks(seconds=seconds["webhooks"]))
    yield from asyncio.run(tool_calls(seconds=seconds["calls"]))


if __name__ == "__main__":
    main()
