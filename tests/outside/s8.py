"""A model that hides an argument: nobody is asked about a call that cannot be shown completely."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.gated import LIBRARIES, calling

FINDING = "S8"
PADDING = ", ".join(f'"a{number:02}": {number}' for number in range(49))
CASES = {
    "padded with 49 arguments of its own": f'{{{PADDING}, "command": "rm -rf ~"}}',
    "an argument named ...": '{"...": "and 1 more", "command": "rm -rf ~"}',
    "half letters as names": '{"\\ud800": 1, "\\udfff": 2, "command": "rm -rf ~"}',
    "a number that is not finite": '{"command": "ls", "amount": 1e400}',
}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            async with calling(library, Path(folder)) as call:
                for number in range(times):
                    for case, arguments in CASES.items():
                        answer = await call(arguments, modes='{"form": {}, "url": {}}')
                        is_refused = "INVALID_ARGUMENTS" in answer.text
                        yield f"{library}: {case}", is_refused and not call.has_run
                    # Use a new call each time: if an unanswered call is repeated, it shows a link
                    # and no form.
                    fine = f'{{"command": "ls", "amount": "{number}"}}'
                    shown = await call(fine, modes='{"form": {}}')
                    message = shown.json()["result"]["inputRequests"]
                    text = next(iter(message.values()))["params"]["message"]
                    is_right = text.endswith(f"command: ls\namount: {number}.0\nagain: no")
                    yield f"{library}: what the body would get", is_right and not call.has_run
