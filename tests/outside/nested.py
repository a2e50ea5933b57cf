"""Nested and oversized arguments are refused with an explanation, and without a page.

The test reads only the text of each answer. It does not measure time.
"""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.gated import LIBRARIES, calling

FINDING = "XS4"
TOOLS = """
from typing import Any
from flows import elicit
{imports}

@server.tool()
@elicit.gate
def run(what: dict[str, Any]) -> str:
    return "done"

@server.tool()
async def confirm(what: dict[str, Any]) -> str:
    return str(await elicit.confirm("Sure?", arguments=what))
"""
URL_MODE = '{"url": {}}'
SHAPES = {
    "nested 13 deep": '{"a":' * 14 + "1" + "}" * 14,
    "nested 100 deep": '{"a":' * 100 + "1" + "}" * 100,
    "nested 300 deep": '{"a":' * 300 + "1" + "}" * 300,
    "nested 900 deep": '{"a":' * 900 + "1" + "}" * 900,
    "nested 4,000 deep": '{"a":' * 4000 + "1" + "}" * 4000,
    "a list of 3,000": json.dumps({"a": [0] * 3000}),
    "nested 12 deep, 4,000 wide": '{"a":' * 11 + json.dumps([0] * 3500) + "}" * 11,
}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            async with calling(library, Path(folder), TOOLS) as call:
                for _ in range(times):
                    for shape, text in SHAPES.items():
                        for tool in ("run", "confirm"):
                            arguments = f'{{"what": {text}}}'
                            answer = await call(arguments, modes=URL_MODE, tool=tool)
                            is_refused = "/e/" not in answer.text and any(
                                words in answer.text for words in ("deep", "values", "lines")
                            )
                            yield f"{library}, {tool}: {shape}", is_refused
