"""The actions of accounts and receipts for their owner once a tool has received them.

Risks: a tool keeps an account's access token and uses it after its call, or after the person
stopped sharing the account. The old token cannot be taken back, but the tool gets no newer token.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from flows.elicitation.states import Json
from flows.elicitation.tool_call import CallingClient
from flows.errors import ElicitError
from flows.question import reporting_errors
from webapp.payments.payments import Payments

if TYPE_CHECKING:
    import httpx

    from webapp.http.client import Outbound
    from webapp.oauth.accounts import Accounts


T = TypeVar("T")
_ON_THE_LOOP = (
    "sync_client() blocks: it is for a `def` tool, which runs in a thread of its own. In an async "
    "tool write `async with account.client() as api:`."
)


class OwnersReach:
    """The accounts and receipts of one owner. Implements flows.question.Resources."""

    def __init__(
        self,
        *,
        owner: str,
        run: str,
        leg: str,
        tool: str,
        calling_client: CallingClient,
        has_ended: Callable[[], bool],
        payments: Payments,
        outbound: "Outbound",
        accounts: "Accounts",
        hide: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._owner = owner
        self._run = run
        self._leg = leg
        self._tool = tool
        self._calling_client = calling_client
        self._has_ended = has_ended  # True if the call has ended
        self._payments = payments
        self._outbound = outbound
        self._accounts = accounts
        self._hide = hide  # called with each new access token, which no error may contain
        self._loop = loop  # the call's own event loop

    def client(self, *, base_url: str, auth: "httpx.Auth") -> "httpx.AsyncClient":
        return self._outbound.client(base_url=base_url, auth=auth)

    def sync_client(self, *, base_url: str, auth: "httpx.Auth") -> "httpx.Client":
        with reporting_errors():
            _must_be_a_thread()
        return self._outbound.sync_client(base_url=base_url, auth=auth)

    def now(self) -> datetime:
        return self._accounts.now()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            _must_be_a_thread()
        except ElicitError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def renew(self, connection: str, refused: str) -> str | None:
        if self._has_ended():
            return None
        keys, owner = self._accounts.keys, self._owner
        key = await keys.instead_of(
            owner, connection, refused=refused, tool=self._tool, client=self._calling_client
        )
        if key is None or self._has_ended():
            return None
        self._hide(key)
        return key

    async def invalidate(self, connection: str, refused: str) -> None:
        keys, by = self._accounts.keys, self._calling_client
        await keys.invalidate(self._owner, connection, refused=refused, tool=self._tool, client=by)

    async def spend(self, receipt_id: str) -> Json:
        return await self._payments.spend(self._owner, receipt_id, run=self._run, leg=self._leg)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        return await self._payments.refund(self._owner, receipt_id, reason=reason, run=self._run)


def _must_be_a_thread() -> None:
    """Check that the caller is not on an event loop, which would wait for itself.

    Raises ElicitError if the thread runs an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ElicitError(_ON_THE_LOOP)
