"""`python -m benchmarks.audited`: the processor time that the audit adds to a question.

Risks: on a busy machine, a wait for the disk takes longer than the compared work. So both sides
alternate, and the processor time of this process is compared, on SQLite.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import process_time

from benchmarks.figure import Figure, alternate, in_rounds, summary, table
from benchmarks.in_process import open_elicitations
from benchmarks.settling import AT_ONCE, our_lifecycles, our_resumed

_TIMES = 20


async def audited(folder: Path, *, seconds: float, times: int = _TIMES) -> list[Figure]:
    """Measure questions one by one, and many questions of one person at once."""
    figures, address = list[Figure](), f"sqlite:///{folder / 'audited.db'}"
    async with (
        open_elicitations(folder) as (without, owner),
        open_elicitations(folder, address=address, is_audited=True) as (audited, other),
    ):

        async def one_by_one(side: Callable[[], Awaitable[float]]) -> None:
            for _ in range(times):
                await side()

        for what, baseline, audited_service in (
            (
                "a question until its await returns",
                partial(one_by_one, partial(our_resumed, without, owner)),
                partial(one_by_one, partial(our_resumed, audited, other)),
            ),
            (
                f"a lifecycle, {AT_ONCE} of one person at once",
                partial(our_lifecycles, without, owner, times * 10),
                partial(our_lifecycles, audited, other, times * 10),
            ),
        ):
            sides = partial(_processor, baseline), partial(_processor, audited_service)
            await alternate(0, *sides, times=2)  # warm-up
            rounds = [await alternate(each, *sides, times=2) for each in in_rounds(seconds / 2)]
            figures.append(
                summary(
                    f"processor time of {what}, audited",
                    rounds,
                    show=lambda took: f"{took * 1e3:.1f} ms",
                )
            )
    return figures


async def _processor(work: Callable[[], Awaitable[object]]) -> float:
    start = process_time()
    await work()
    return process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audited", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rougher one")
    seconds = 10.0 if parser.parse_args().quick else 60.0
    with tempfile.TemporaryDirectory() as folder:
        print(table(asyncio.run(audited(Path(folder), seconds=seconds))))


if __name__ == "__main__":
    main()
