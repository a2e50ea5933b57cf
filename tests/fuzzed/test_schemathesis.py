"""A run of schemathesis, which generates requests from the OpenAPI document."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.api_program import CONFIRM, program_at
from tests.support.asking_env import asking_env
from tests.support.cli import PROJECT
from tests.support.living import living
from tests.support.pinned import installed
from tests.support.processes import ended, start
from webapp.api.router import api
from webapp.identity.api_keys import KeyScope

PINS = Path(__file__).parent / "requirements.txt"
EXAMPLES = 12
ENDLESS = "/{question_id}/events"  # a stream that stays open until the question ends
_ASKS: dict[str, Any] = {"also": (KeyScope.TOKENS, KeyScope.REFUND)}
_APPROVES: dict[str, Any] = {"scope": KeyScope.APPROVE, "owners": ("ann",)}
_OPERATES: dict[str, Any] = {"scope": KeyScope.OPERATE}


def operations() -> list[str]:
    """Return the labels of all operations except the endless stream.

    The proxy is listed for one method, PUT.
    """
    return [
        f"{method.upper()} {path}"
        for path, item in api().openapi_schema.to_schema()["paths"].items()
        for method in item
        if not path.endswith(ENDLESS) and (method == "put" or not path.endswith("/proxy"))
    ]


def scopes_for(operation: str) -> dict[str, Any]:
    """Return the scopes that a key needs for this operation."""
    if "/webhooks" in operation:
        return _OPERATES
    return _APPROVES if operation.endswith("/answer") else _ASKS


async def test_generated_requests_do_not_break_the_server() -> None:
    async with living(asking_env()) as here, program_at(here) as shop:
        await shop.asked(CONFIRM)
        keys = dict[str, str]()
        for number, operation in enumerate(operations()):
            # Requests are counted by program, so each operation has its own program.
            name, scopes = f"fuzzer-{number}", scopes_for(operation)
            async with program_at(here, program=name, **scopes) as program:
                keys[operation] = program.key
        paths = os.pathsep.join([str(PROJECT), str(installed(PINS, "fuzzed"))])
        process = await start(
            *(sys.executable, "-m", "tests.fuzzed.sender"),
            *(here.url, str(EXAMPLES), json.dumps(keys)),
            name="schemathesis",
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": paths},
        )
        sent = await ended(process)
    assert sent.status == 0, sent.err
    answer = json.loads(sent.out)
    assert answer.pop("broken") == []
    assert answer.keys() == keys.keys()
    assert all("401" not in statuses and "429" not in statuses for statuses in answer.values())
