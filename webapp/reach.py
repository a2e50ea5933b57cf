"""The reach of accounts and receipts: what they do for their owner once a tool has them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from flows.elicitation import Json
from webapp.payments import Payments

if TYPE_CHECKING:
    import httpx

    from webapp.accounts import Accounts
    from webapp.outbound import Outbound


class OwnersReach:
    """Implements flows.question.Reach for one owner."""

    def __init__(
        self,
        *,
        owner: str,
        run: str,
        payments: Payments,
        outbound: "Outbound",
        accounts: "Accounts",
        hide: Callable[[str], None],
    ) -> None:
        self._owner = owner
        self._run = run
        self._payments = payments
        self._outbound = outbound
        self._accounts = accounts
        self._hide = hide  # told of each new key, which no error may carry

    def client(self, *, base_url: str, auth: "httpx.Auth") -> "httpx.AsyncClient":
        return self._outbound.client(base_url=base_url, auth=auth)

    async def renew(self, connection: str, refused: str) -> str | None:
        key = await self._accounts.keys.instead_of(self._owner, connection, refused=refused)
        if key is not None:
            self._hide(key)
        return key

    async def spend(self, receipt_id: str) -> Json:
        return await self._payments.spend(self._owner, receipt_id, run=self._run)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        return await self._payments.refund(self._owner, receipt_id, reason=reason)
