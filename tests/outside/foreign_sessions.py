"""Another user of the machine, or a caller with another token, uses a stolen session id."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.cli import serving
from tests.support.mcp_server import LIBRARIES
from tests.support.users import ME, NOBODY, Answer, answered, calling, opened_session, sent

FINDING = "S1"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with TemporaryDirectory() as folder, TemporaryDirectory() as elsewhere:
            home, other = Path(folder), Path(elsewhere)
            payment_env, extra = home / "till", {"TILL": str(home / "till")}
            if os.getuid() == 0:  # only root can create another user's connection
                async with serving(f"tests.outside.shop:{library}", home=home, extra=extra) as here:
                    for _ in range(times):
                        url = f"{here.url}/mcp"
                        yield (
                            f"another user can't answer, end or hear a session ({library})",
                            await _is_refused(url, {}, {}, payment_env, thief=NOBODY),
                        )
                        yield (
                            f"a foreign Last-Event-ID gives nothing ({library}, two users)",
                            await _gets_no_event(url, {}, {}, thief=NOBODY),
                        )
            name = f"tests.outside.shop:guarded_{library}"
            async with serving(name, home=other, extra=extra) as here:
                anns, bobs = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
                for _ in range(times):
                    url = f"{here.url}/mcp"
                    yield (
                        f"another token can't answer, end or hear a session ({library})",
                        await _is_refused(url, anns, bobs, payment_env),
                    )
                    yield (
                        f"a foreign Last-Event-ID gives nothing ({library}, two tokens)",
                        await _gets_no_event(url, anns, bobs),
                    )


async def _is_refused(
    url: str,
    owners: Mapping[str, str],
    thiefs: Mapping[str, str],
    payment_env: Path,
    *,
    thief: int = ME,
) -> bool:
    session = await opened_session(url, headers=owners)
    stolen = {**session, **thiefs}
    talk = None
    if not owners:  # callers with a token cannot be asked: there is no sign-in
        talk = await sent(url, message=calling("wipe"), headers=session)
        await talk.until('"elicitation/create"')
    yes: dict[str, Any] = {"id": 1, "result": {"action": "accept", "content": {}}}
    tries: list[dict[str, Any]] = [
        {"message": yes},
        {"message": {"method": "notifications/cancelled", "params": {"requestId": 1}}},
        {"message": calling("wipe", id=9)},
        {"method": "GET"},
        {"method": "DELETE"},
    ]
    refused = [await answered(url, uid=thief, headers=stolen, **each) for each in tries]
    going_on = await answered(url, message={"id": 3, "method": "ping"}, headers=session)
    if talk is not None:
        no = {"id": 1, "result": {"action": "decline"}}
        await answered(url, message=no, headers=session)
        await talk.rest()
        talk.close()
    await answered(url, method="DELETE", headers=session)
    return (
        all(answer.status == 404 for answer in refused)
        and going_on.status == 200
        and not _was_wiped(payment_env)
    )


def _was_wiped(payment_env: Path) -> bool:
    return payment_env.exists() and "wiped" in payment_env.read_text()


async def _gets_no_event(
    url: str, owners: Mapping[str, str], thiefs: Mapping[str, str], *, thief: int = ME
) -> bool:
    """Return True if the thief's session cannot resume the opener's session by its event ids."""
    session = await opened_session(url, headers=owners)
    own = await opened_session(url, uid=thief, headers=thiefs)
    received = await answered(url, message={"id": 3, "method": "tools/list"}, headers=session)
    ids = [line[3:].strip() for line in received.body.splitlines() if line.startswith("id:")]
    tried: list[Answer] = []
    for id in ids:
        resuming = {**own, "last-event-id": id}
        tried.append(await answered(url, method="GET", uid=thief, headers=resuming))
    for headers, uid in ((session, ME), (own, thief)):
        await answered(url, method="DELETE", headers=headers, uid=uid)
    return bool(tried) and all(
        answer.status == 400 and "wipe" not in answer.body for answer in tried
    )
