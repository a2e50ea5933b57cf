"""`python -m tests.outside [ID ...] [--times 20]`: print how often each case passed.

The exit status is 1 if a try failed, and 2 if no row has one of the ids.
"""

import argparse
import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Sequence

from tests.outside.rows import ROWS, Row


async def count(row: Row, *, times: int) -> bool:
    right: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    async for case, is_right in row.reproduce(times):
        tried[case] += 1
        right[case] += is_right
    for case, all_tries in tried.items():
        print(f"{row.FINDING:4} {case:72} {right[case]:3} of {all_tries:3}", flush=True)  # noqa: T201 -- a table is what it is for
    return right == tried


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("ids", nargs="*", help="rows, by their ids; all where none is named")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args(argv)
    unknown = set(arguments.ids) - {row.FINDING for row in ROWS}
    if unknown:
        parser.error(f"No row has the id {', '.join(sorted(unknown))}. Check the spelling.")
    logging.disable()  # hide the log of the libraries in this process
    rows = [row for row in ROWS if not arguments.ids or row.FINDING in arguments.ids]
    is_right = [asyncio.run(count(row, times=arguments.times)) for row in rows]
    return 0 if all(is_right) else 1


if __name__ == "__main__":
    sys.exit(main())
