"""The reach of accounts and receipts: what they do for their owner once a tool has them.

What could go wrong: a tool that keeps what it was given and goes on with it after its call, or
after the person has stopped sharing it. The key it has stays what it is; there is no newer one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flows.elicitation.calling_client import CallingClient
from flows.elicitation.states import Json
from webapp.payments.payments import Payments

if TYPE_CHECKING:
    import httpx

    from webapp.http.client import Outbound
    from webapp.oauth.accounts import Accounts


class OwnersReach:
    """Implements flows.question.Resources for one owner."""

    def __init__(
        self,
        *,
        owner: str,
        run: str,
        leg: str,
        tool: str,
        calling_client: CallingClient,
        is_over: Callable[[], bool],
        payments: Payments,
        outbound: "Outbound",
        accounts: "Accounts",
        hide: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._run = run
        self._leg = leg
        self._tool = tool
        self._calling_client = calling_client
        self._is_over = is_over  # the call
        self._payments = payments
        self._outbound = outbound
        self._accounts = accounts
        self._hide = hide  # told of each new key, which no error may carry

    def client(self, *, base_url: str, auth: "httpx.Auth") -> "httpx.AsyncClient":
        return self._outbound.client(base_url=base_url, auth=auth)

    async def renew(self, connection: str, refused: str) -> str | None:
        if self._is_over():
            return None
        keys, owner = self._accounts.keys, self._owner
        key = await keys.instead_of(
            owner, connection, refused=refused, tool=self._tool, client=self._calling_client
        )
        if key is None or self._is_over():
            return None
        self._hide(key)
        return key

    async def spend(self, receipt_id: str) -> Json:
        return await self._payments.spend(self._owner, receipt_id, run=self._run, leg=self._leg)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        return await self._payments.refund(self._owner, receipt_id, reason=reason, run=self._run)
