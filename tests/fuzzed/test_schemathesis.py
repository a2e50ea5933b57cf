"""schemathesis, which reads the OpenAPI document and sends what comes of it."""

import json
import os
import sys
from pathlib import Path

from tests.support.api_program import CONFIRM, program_at
from tests.support.asking_env import asking_env
from tests.support.cli import HOUSE
from tests.support.living import living
from tests.support.pinned import installed
from tests.support.processes import ended, start
from webapp.api.router import api

ENDLESS = "/events"  # as the sender leaves it out, whose tool is not installed here
PINS = Path(__file__).parent / "requirements.txt"
EXAMPLES = 25
OPERATIONS = sum(
    len(item)
    for path, item in api().openapi_schema.to_schema()["paths"].items()
    if not path.endswith(ENDLESS)
)


async def test_nothing_that_the_document_allows_or_forbids_breaks_the_server() -> None:
    async with living(asking_env()) as here, program_at(here) as shop:
        await shop.asked(CONFIRM)
        keys = list[str]()
        for _ in range(OPERATIONS):
            async with program_at(here) as program:
                keys.append(program.key)
        paths = os.pathsep.join([str(HOUSE), str(installed(PINS, "fuzzed"))])
        process = await start(
            *(sys.executable, "-m", "tests.fuzzed.sender", here.url, str(EXAMPLES), *keys),
            name="schemathesis",
            cwd=HOUSE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        sent = await ended(process)
    assert sent.status == 0, sent.err
    told = json.loads(sent.out)
    assert told.pop("broken") == []
    assert len(told) == OPERATIONS
    assert all("401" not in statuses and "429" not in statuses for statuses in told.values())
