"""Accepting a link must not approve a call if the request declares other modes than before."""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.gated import LIBRARIES, calling

FINDING = "S2"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            async with calling(library, Path(folder)) as call:
                for number in range(times):
                    arguments = json.dumps({"command": f"rm {number}"})
                    asked = (await call(arguments, modes='{"url": {}}')).json()["result"]
                    answers = {key: {"action": "accept"} for key in asked["inputRequests"]}
                    carried = {"requestState": asked["requestState"], "inputResponses": answers}
                    answer = await call(arguments, modes='{"form": {}, "url": {}}', more=carried)
                    has_ended = "ELICITATION_TIMEOUT" in answer.text
                    yield (
                        f"{library}: an accept of a link in another mode",
                        (has_ended and not call.has_run),
                    )
