"""The claims of one request: outcomes that no other request may use until the lease expires.

Risks: a request is cancelled while it claims an outcome, and its lease blocks other requests.
"""

import asyncio
from collections.abc import Callable  # noqa: TC003 - needed for annotations of attributes
from datetime import datetime  # noqa: TC003 - the same

from flows.elicitation import states
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Status
from flows.errors import NotPossible
from webapp.elicitations.service import Elicitations


class Leases:
    def __init__(self, elicitations: Elicitations, *, leg: str, is_shared: bool = False) -> None:
        """Create the claims of a request.

        `is_shared`: several HTTP requests share `leg`, and none releases another one's claim.
        """
        self._elicitations = elicitations
        self._leg = leg
        self._is_shared = is_shared
        self._held_before: set[str] = set()
        self._until: dict[str, datetime] = {}  # of claims made by this object
        self._is_used: dict[str, bool] = {}  # by elicitation: True if the body has seen it
        self._yeses: set[str] = set()
        self._unfinished_claims: set[asyncio.Task[Elicitation]] = set()
        self.on_first: Callable[[], None] = _nothing
        self.has_ended = False  # True after the end of the request, which gets no more outcomes

    def __bool__(self) -> bool:
        return bool(self._is_used)

    @property
    def used(self) -> list[str]:
        return [id for id, is_used in self._is_used.items() if is_used]

    def unused_of(self, run: Run) -> set[str]:
        """Return the ids of the run's questions whose acceptances this request has not used."""
        asked = {asking.elicitation_id for asking in run.asked if not asking.is_used}
        return asked - self._yeses

    def was_prefetched(self, settled: Elicitation) -> bool:
        """Record that the write that settled the elicitation also claimed it for this request.

        Return False if the request has ended without using the outcome. (Before this method is
        called, the request may have read the write from the store, used the outcome and ended.)
        """
        if self.has_ended:
            return settled.id in self._is_used
        self._has(settled)
        return True

    async def claim(self, current: Elicitation, *, run: str) -> Elicitation | None:
        """Claim the outcome for this request of the run. Return None if another request has it."""
        is_ours = current.take is not None and current.take.leg == self._leg
        if is_ours and self._is_shared and self._elicitations.is_held(current):
            self._held_before.add(current.id)
        if not is_ours or self._is_shared:
            claiming = asyncio.create_task(
                self._elicitations.claim(current.id, run=run, leg=self._leg, known=current)
            )
            self._unfinished_claims.add(claiming)
            try:
                current = await asyncio.shield(claiming)
            except NotPossible:
                return None
            if current.take is not None:
                self._until[current.id] = current.take.until
        self._has(current)
        return current

    def use(self, claimed: Elicitation) -> None:
        """Record that the body sees the outcome from now on."""
        self._is_used[claimed.id] = True
        if claimed.status is Status.ACCEPTED:
            self._yeses.add(claimed.id)

    def forget(self, claimed: Elicitation) -> None:
        del self._is_used[claimed.id]

    async def release_unused(self) -> None:
        """Release the outcomes that the body has not seen, including unfinished claims."""
        if self._unfinished_claims:
            done, _ = await asyncio.wait(self._unfinished_claims)
            for claiming in done:
                if not claiming.cancelled() and claiming.exception() is None:
                    self._is_used.setdefault(claiming.result().id, False)
        await self._release([id for id, is_used in self._is_used.items() if not is_used])

    async def release_used(self) -> None:
        """Release the outcomes that the body has used, so that the next request may use them.

        Call this for a request that ends without a result.
        """
        await self._release(self.used)

    async def ended(self) -> list[Elicitation]:
        """Return the used outcomes with their leases ended, for the caller to write.

        Another request then continues the run.
        """
        return await self._elicitations.possible(
            self.used, lambda e: states.end_lease(e, leg=self._leg)
        )

    async def renew(self) -> None:
        await self._elicitations.each(
            list(self._is_used),
            lambda e: states.renew(e, leg=self._leg, now=self._elicitations.clock()),
        )

    def _has(self, claimed: Elicitation) -> None:
        self._is_used.setdefault(claimed.id, False)
        self.on_first()

    async def _release(self, ids: list[str]) -> None:
        ids = [id for id in ids if id not in self._held_before]
        if ids:
            await self._elicitations.each(ids, self._released)

    def _released(self, current: Elicitation) -> Elicitation:
        lease = current.take
        if self._is_shared and lease is not None and lease.until != self._until.get(current.id):
            return current  # another request with the same id has claimed the outcome since then
        return states.release(current, leg=self._leg)


def _nothing() -> None:
    pass
