"""`once`: work that is done once, however often a tool's body runs again.

What could go wrong: the process dies between the work and its record. Then it is done again, with
the idempotency key that it got the first time; this cannot be closed from here.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

from flows.elicitation import Json
from flows.errors import InvalidQuestion
from webapp.elicitations import Elicitations
from webapp.rows import Done
from webapp.stores import Conflict

KEPT = timedelta(days=1)


async def do_once(
    elicitations: Elicitations,
    *,
    owner: str,
    scope: str,
    name: str,
    work: Callable[[str], Awaitable[Json]],
) -> Json:
    """The kept result of `name` under `scope`, which is a run.

    Raises InvalidQuestion if the result is no JSON, and what the work raises.
    """
    pepper = elicitations.owners.pepper
    id = owner + pepper.tag("once", scope, name, size=18)
    done = await elicitations.done(owner=owner, id=id)
    if done is None:
        result = await work(pepper.tag("idempotency", scope, name, size=18))
        try:
            text = json.dumps(result, allow_nan=False)
        except (TypeError, ValueError) as err:
            raise InvalidQuestion(f"What once({name!r}) did is no JSON: {err}.") from err
        done = Done(id=id, owner=owner, result=text, erase_at=elicitations.clock() + KEPT)
        try:
            await elicitations.write(done)
        except Conflict:
            done = await elicitations.done(owner=owner, id=id) or done
    kept: Json = json.loads(done.result)
    return kept
