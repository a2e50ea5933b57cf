"""How much work a function does, told without a clock: counted, or compared with other work.

What could go wrong: a bound in milliseconds, which a slower or busy machine breaks while nothing is
wrong. So Python's own steps and the bytes that it takes are counted, which are the same on every
machine. Work inside of C, such as a regular expression, has no steps: there the work is compared
with a baseline that the same process does at the same moment. Both are measured in processor time
of this thread, which a busy machine takes from neither, and only the quotient judges.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_ROUNDS_AT_LEAST: Final = 3
_ROUNDS_AT_MOST: Final = 30  # of which one round of quiet is enough
_SECONDS_AT_LEAST: Final = 0.002  # of one measurement: what is shorter is repeated
Work = Callable[[], object]


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
    """Return how many bytes more than before were held at once while it worked."""
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
    """Return True if `work` takes at most so many times as long as `baseline` at this moment."""
    least, least_baseline = _seconds_of(work), _seconds_of(baseline)
    for number in range(_ROUNDS_AT_MOST):
        bound = times * least_baseline
        if number >= _ROUNDS_AT_LEAST and (least <= bound or least > 2 * bound):
            return least <= bound
        least = min(least, _seconds_of(work))
        least_baseline = min(least_baseline, _seconds_of(baseline))
    return False


def many_values() -> object:
    """Make 50,000 small objects: a baseline for what a request may cost in all."""
    return [{"n": str(number)} for number in range(50_000)]


def _seconds_of(work: Work) -> float:
    """Return the processor time that one call takes, of as many as can be measured."""
    calls = 1
    while True:
        began = time.thread_time()
        for _ in range(calls):
            work()
        taken = time.thread_time() - began
        if taken >= _SECONDS_AT_LEAST:
            return taken / calls
        calls *= 4
