"""`once`: work that is done once, however often a tool's body runs again.

What could go wrong: the process dies between the work and its record. Then it is done again, with
the idempotency key that it got the first time; this cannot be closed from here. Nor can two
identical calls that two processes begin at one moment.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta

from flows.elicitation import Json
from flows.errors import InvalidQuestion
from webapp.elicitations import Elicitations
from webapp.rows import Done
from webapp.stores import Conflict

KEPT = timedelta(days=1)
# Longer than any call can still be given the receipt (flows.elicitation.KEPT).
KEPT_UNDER_A_RECEIPT = timedelta(days=60)


async def do_once(
    elicitations: Elicitations,
    *,
    owner: str,
    scope: str,
    kept: timedelta,
    name: str,
    work: Callable[[str], Awaitable[Json]],
) -> Json:
    """The kept result of `name` under `scope`, which is a run or a receipt.

    Raises InvalidQuestion if the result is no JSON, and what the work raises.
    """
    pepper = elicitations.owners.pepper
    id = owner + pepper.tag("once", scope, name, size=18)
    key = pepper.tag("idempotency", scope, name, size=18)
    while (doing := elicitations.doing.get(id)) is not None:
        await asyncio.wait({doing})  # an identical call is at it in this process
    elicitations.doing[id] = over = asyncio.get_running_loop().create_future()
    try:
        done = await elicitations.done(owner=owner, id=id)
        if done is None:
            text = await _text(name, work, key)
            done = Done(id=id, owner=owner, result=text, erase_at=elicitations.clock() + kept)
            try:
                await elicitations.write(done)
            except Conflict:
                done = await elicitations.done(owner=owner, id=id) or done
    finally:
        del elicitations.doing[id]
        over.set_result(None)
    result: Json = json.loads(done.result)
    return result


async def do_unkept(name: str, work: Callable[[str], Awaitable[Json]]) -> Json:
    """For a caller without an identity, of whom nothing is kept: every leg does it again."""
    result: Json = json.loads(await _text(name, work, secrets.token_urlsafe(18)))
    return result


async def _text(name: str, work: Callable[[str], Awaitable[Json]], key: str) -> str:
    result = await work(key)
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as err:
        raise InvalidQuestion(f"What once({name!r}) did is no JSON: {err}.") from err
