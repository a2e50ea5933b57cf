"""The accounts and receipts of an owner, as a tool's call uses them.

Risks: a tool keeps an account's access token and uses it after its call, or after the person
stopped sharing the account. The tool still has the old token, but it gets no newer one.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from flows.elicitation.states import Json
from flows.errors import ElicitError
from flows.question import OnWire, reporting_errors
from webapp.calls.call import Call

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_ON_THE_LOOP = (
    "sync_client() blocks: it is for a `def` tool, which runs in a thread of its own. In an async "
    "tool write `async with account.client() as api:`."
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class OwnersReach:
    """The accounts and receipts of one owner in a call. Implements flows.question.Resources."""

    call: Call
    owner: str
    run: str

    def client(self, *, base_url: str, auth: "httpx.Auth", on_wire: OnWire) -> "httpx.AsyncClient":
        return self.call.outbound.client(base_url=base_url, auth=auth, on_wire=on_wire)

    def sync_client(self, *, base_url: str, auth: "httpx.Auth", on_wire: OnWire) -> "httpx.Client":
        with reporting_errors():
            _must_be_a_thread()
        return self.call.outbound.sync_client(base_url=base_url, auth=auth, on_wire=on_wire)

    def now(self) -> datetime:
        return self.call.clock()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            _must_be_a_thread()
        except ElicitError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self.call.loop).result()

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        call, tool = self.call, self.call.tool
        if call.has_ended:
            return None
        newer = await call.kinds.accounts.keys.instead_of(
            self._holder_of(connection),
            connection,
            refused=refused,
            tool=tool.tool,
            client=tool.calling_client,
        )
        if newer is None or call.has_ended:
            return None
        call.used.hidden.add(newer[0])  # no error may contain an access token
        return newer

    async def invalidate(self, connection: str, refused: str) -> None:
        keys, tool = self.call.kinds.accounts.keys, self.call.tool
        owner, by = self._holder_of(connection), tool.calling_client
        await keys.invalidate(owner, connection, refused=refused, tool=tool.tool, client=by)

    def _holder_of(self, connection: str) -> str:
        caller, until = self.call.caller, self.call.caller.teams_until
        teams = caller.teams if until is None or self.now() < until else ()
        return self.call.kinds.accounts.connections.holder_of(
            connection, owner=self.owner, teams=teams
        )

    async def spend(self, receipt_id: str) -> Json:
        return await self.call.kinds.payments.spend(
            self.owner, receipt_id, run=self.run, request_id=self.call.request_id
        )

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        return await self.call.kinds.payments.refund(
            self.owner, receipt_id, reason=reason, run=self.run
        )


def _must_be_a_thread() -> None:
    """Check that the current thread runs no event loop, which a blocking wait would stop.

    Raises ElicitError if the thread runs an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ElicitError(_ON_THE_LOOP)
