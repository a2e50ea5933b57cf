"""Check that the tests still kill the faults. Exit with 1 if a fault that was killed survives now.

    python -m tests.mutation                          each by the test that killed it
    python -m tests.mutation --reach MAP              by the tests that reach its line
    python -m tests.mutation --tests tests/flows ...  by these files and folders

`python -m tests.mutation.reach MAP` creates MAP, on the same tree.
"""

import argparse
import json
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutation.fault import DEAD, OUTCOMES, Fault, Location, faults_of
from tests.mutation.packages import PROJECT, package_of, sources_of
from tests.mutation.trial import (
    Copy,
    Outcome,
    Reach,
    import_what_takes_long,
    in_portions,
    likely_files,
)

MORTAL: Final = ("flows/elicitation/states.py", "tests/flows/elicitation/test_run.py")

Outcomes = dict[str, dict[str, str]]


class Trials:
    """Tries faults, each in the next free copy of the tree."""

    def __init__(self, *, reach: Reach | None, paths: Sequence[str], seconds: float) -> None:
        self.known: Outcomes = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
        self._reach = reach
        self._files = _files(paths)
        self._paths = tuple(paths)
        self._seconds = seconds
        self._sources = sources_of()
        self.copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def prove(self) -> None:
        """Check that a broken import fails the tests, and that they pass without it."""
        copy = self.copies.get()
        module, test = MORTAL
        with copy.broken(module, ["raise RuntimeError"]):
            assert copy.first_failure([test]).is_killed, (
                "the tests must fail if the copied module cannot be imported"
            )
        assert copy.first_failure([test]).word == "survived", (
            "the tests must pass on an unchanged copy"
        )
        self.copies.put(copy)

    def try_out(self, fault: Fault) -> Outcome:
        place = fault.place(self._sources)
        if place is None:
            return Outcome(word="cannot be applied")
        portions = [*self._portions(fault, place)]
        if not portions:
            return Outcome(word="not reached")
        killer = self.known.get(fault.id, {}).get("test", "")
        its_file = killer.split("::")[0]
        until = time.monotonic() + self._seconds
        copy = self.copies.get()
        try:
            with copy.broken(place.module, fault.applied(self._sources[place.module], place)):
                if (PROJECT / its_file).is_file() and self._has(its_file):
                    one = {killer} if "::" in killer else ()
                    if (outcome := copy.first_failure([its_file], one)).is_killed:
                        return outcome
                for portion in portions:
                    tests = {test for of_file in portion.values() for test in of_file}
                    left = max(0.0, until - time.monotonic())
                    outcome = copy.first_failure([*portion], tests, seconds=left)
                    if outcome.word != "survived":
                        return outcome
        finally:
            self.copies.put(copy)
        return Outcome(word="survived")

    def unsound(self, killers: Sequence[str]) -> Outcome:
        """Run the killing tests on the unchanged tree, and return the first failure, if any."""
        copy = self.copies.get()
        names = {one for one in killers if "::" in one}
        outcome = copy.first_failure(sorted({one.split("::")[0] for one in names}), names)
        self.copies.put(copy)
        return outcome

    def _portions(self, fault: Fault, place: Location) -> Iterator[dict[str, set[str]]]:
        """Yield a few files at a time, with the tests to run there. An empty set means all."""
        if self._reach:
            yield from self._reach.portions(fault, self._paths)
            return
        files = self._files or likely_files(place.module)
        yield from ({file: set[str]() for file in portion} for portion in in_portions(files))

    def _has(self, file: str) -> bool:
        return not self._paths or file.startswith(self._paths)


def _files(paths: Sequence[str]) -> list[str]:
    found = [
        one
        for path in (PROJECT / path for path in paths)
        for one in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    return sorted({one.relative_to(PROJECT).as_posix() for one in found})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="faults, by their ids")
    parser.add_argument("--tests", nargs="*", default=[], help="files and folders of tests")
    parser.add_argument("--reach", type=Path, help="a map of which tests reach which lines")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="at most, for one fault")
    parser.add_argument("--write", action="store_true", help="into outcomes.json")
    arguments = parser.parse_args()
    faults = faults_of()
    if arguments.only:
        faults = [fault for id in arguments.only for fault in faults if fault.id == id]
    elif not (arguments.tests or arguments.reach):
        known: Outcomes = json.loads(OUTCOMES.read_text())
        faults = [fault for fault in faults if known.get(fault.id, {}).get("outcome") in DEAD]
    reach = Reach(json.loads(arguments.reach.read_text())) if arguments.reach else None
    trials = Trials(reach=reach, paths=arguments.tests, seconds=arguments.seconds)
    os.chdir(PROJECT)
    import_what_takes_long()
    lost: list[str] = []
    outcomes: dict[str, Outcome] = {}
    with TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.workers) as pool:
        for number in range(arguments.workers):
            trials.copies.put(Copy(Path(folder) / str(number)))
        trials.prove()
        running = {pool.submit(trials.try_out, fault): fault for fault in faults}
        for done in as_completed(running):
            fault, outcome = running[done], done.result()
            outcomes[fault.id] = outcome
            before = trials.known.get(fault.id, {})
            if before.get("outcome") in DEAD and not outcome.is_killed:
                lost.append(fault.id)
            print(fault.id, package_of(fault.module), outcome.word, outcome.test or "", flush=True)  # noqa: T201 -- the counts are what it is for
            if arguments.write:
                _write(trials.known, fault, outcome)
        killers = [one.test for one in outcomes.values() if one.is_killed and one.test]
        unsound = trials.unsound(killers) if killers else Outcome(word="survived")
    print(dict(Counter(one.word for one in outcomes.values())))  # noqa: T201
    if unsound.is_killed:
        print("fails without a fault too:", unsound.test)  # noqa: T201
    if lost:
        print("killed before, and not now:", *sorted(lost))  # noqa: T201
    return 1 if lost or unsound.is_killed else 0


def _write(known: Outcomes, fault: Fault, outcome: Outcome) -> None:
    """Write an outcome. The note of a fault is deleted once a test detects the fault."""
    note = "" if outcome.word == "killed" else known.get(fault.id, {}).get("note", "")
    reported = {"outcome": outcome.word, "test": outcome.test or "", "note": note}
    known[fault.id] = {name: text for name, text in reported.items() if text}
    written = json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False)
    OUTCOMES.write_text(written + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
