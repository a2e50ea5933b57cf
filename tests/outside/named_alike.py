"""Two programs use one `elicitation_id` for one user: each completion reaches its own question."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.outside.asked_programs import STORES, programs_on

FINDING = "XS1"
_VENDOR = """
import asyncio, sys
from flows import complete_elicitation
from webapp import connect, read_settings


async def complete(name: str, owner: str, *program: str) -> None:
    more = {"program": program[0]} if program else {}
    async with connect(read_settings()):
        print(await complete_elicitation(name, {"for": "shop"}, owner=owner, **more))


asyncio.run(complete(*sys.argv[1:]))
"""


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for store in STORES:
        with tempfile.TemporaryDirectory() as folder:
            async with programs_on(store, Path(folder)) as served:
                shop, other = await served.key("shop"), await served.key("other")
                for number in range(times):
                    name = f"order-{number}"
                    first = await served.ask(other, **_visit(name))
                    question = await served.ask(shop, **_visit(name))
                    yield f"{store}: the second program is not refused", "id" in question
                    if "id" not in question:
                        continue
                    await served.http.post(f"/api/questions/{question['id']}/cancel", headers=shop)
                    owner = question["id"][:20]
                    await served.script(_VENDOR, name, owner)
                    late = await served.script(_VENDOR, name, owner, "shop")
                    yield f"{store}: the completion reaches its program", "late" in late.out
                    response = await served.http.get(f"/api/questions/{first['id']}", headers=other)
                    is_open = response.json()["status"] == "pending"
                    yield f"{store}: the other program's question stays open", is_open
                    question = await served.ask(shop, **_visit(first["id"]))
                    yield f"{store}: no question's id is a custom id", "id" not in question
                    for other_name in (first["id"], f"{name}:"):
                        await served.script(_VENDOR, other_name, owner, "shop")
                        response = await served.http.get(
                            f"/api/questions/{first['id']}", headers=other
                        )
                        is_open = response.json()["status"] == "pending"
                        yield f"{store}: another program's completion does not complete it", is_open
                    await served.http.post(f"/api/questions/{first['id']}/cancel", headers=other)


def _visit(name: str) -> dict[str, Any]:
    about = {"kind": "url", "message": "Pay at the till.", "url": "https://till.example/9"}
    return {**about, "elicitation_id": name}
