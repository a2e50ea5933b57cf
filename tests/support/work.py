"""Measurements of a function's work without a clock: counted, or compared with other work.

Risks: a bound in milliseconds fails on a slow or busy machine although nothing is wrong. So this
module counts Python's steps and the allocated bytes, which are equal on every machine. Work inside
of C, such as a regular expression, has no steps. Such work is compared with a baseline that runs
in the same process at the same time. Both are measured in processor time of this thread, which
other load does not change, and only their quotient counts.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_ROUNDS_AT_LEAST: Final = 3
_ROUNDS_AT_MOST: Final = 30  # one round without disturbance is enough
_SECONDS_AT_LEAST: Final = 0.002  # a shorter measurement is repeated
Work = Callable[[], object]
_STAY = list[dict[str, str]]()


def steps_of(work: Work) -> int:
    """Return how many lines of Python were executed and how many functions of C were called."""
    steps = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return line

    def call(frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps
        steps += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(line)
    sys.setprofile(call)
    try:
        work()
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    return steps


def bytes_of(work: Work) -> int:
    """Return the peak growth of allocated memory while `work` ran, in bytes."""
    tracemalloc.start()
    try:
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most - held


def is_at_most(work: Work, *, times: float, baseline: Work) -> bool:
    """Return True if `work` takes at most `times` as long as `baseline`.

    The baseline is repeated until it takes as long as the work. On a busy machine, a shorter
    baseline could run undisturbed, but the longer work could not.
    """
    # Otherwise the garbage collector examines the objects of earlier tests during the work.
    gc.collect()
    gc.freeze()
    least = _seconds_of(work)
    least_baseline = _seconds_of(baseline, for_at_least=least)
    for number in range(_ROUNDS_AT_MOST):
        bound = times * least_baseline
        if number >= _ROUNDS_AT_LEAST and (least <= bound or least > 2 * bound):
            return least <= bound
        least = min(least, _seconds_of(work))
        least_baseline = min(least_baseline, _seconds_of(baseline, for_at_least=least))
    return False


def many_values() -> object:
    """Create 50,000 small objects: a baseline for the total cost of a request.

    Some of the objects stay. Otherwise each call gets its memory from the system again, and takes
    half as long again as in a process in which an earlier test has left free memory.
    """
    created = [{"n": str(number)} for number in range(50_000)]
    _STAY[:] = created[::100]
    return created


def _seconds_of(work: Work, *, for_at_least: float = _SECONDS_AT_LEAST) -> float:
    """Return the processor time of one call, averaged over calls that take this many seconds."""
    calls = 1
    while True:
        began = time.thread_time()
        for _ in range(calls):
            work()
        used = time.thread_time() - began
        if used >= max(for_at_least, _SECONDS_AT_LEAST):
            return used / calls
        calls *= 4
