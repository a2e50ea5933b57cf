"""The outcomes that one request has claimed, and what its body has used.

No other request may use a claimed outcome until the lease expires.

Risks: a request is cancelled while it claims an outcome, and its lease blocks other requests. Other
risks are a result that contains a secret and goes to the model, and a call that used a payment but
counts as if it had used nothing. So every answer is recorded here when the body receives it.
"""

import asyncio
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime  # noqa: TC003 - needed for annotations of attributes
from typing import Any, TypeAlias, cast

from flows.elicitation import run as runs
from flows.elicitation import states
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import InvalidQuestion, NotPossible
from flows.question import Request
from flows.schema.schema import Schema, secrets_in
from webapp.elicitations.service import Elicitations, Uncancelled
from webapp.logs.masking import masked

# the kind and the digest of a question, which together distinguish questions
Fact: TypeAlias = tuple[str, str]


class CallUse:
    """The outcomes that one request has claimed, and the things that its body has used."""

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        request_id: str,
        is_shared: bool = False,
        accounts: Mapping[str, str] | None = None,
    ) -> None:
        """Create the claims of a request.

        `is_shared`: several HTTP requests have the same `request_id`. A request then does not
        release an outcome that another of these requests has claimed.
        `accounts` are the accounts of earlier requests, by question digest.
        """
        self._elicitations = elicitations
        self._request_id = request_id
        self.is_shared = is_shared
        self._held_before: set[str] = set()
        self._until: dict[str, datetime] = {}  # when the claims made here end, by id
        self._is_used: dict[str, bool] = {}  # by elicitation id: True if the body saw the outcome
        self._accepted: set[str] = set()
        self._unfinished_claims: set[asyncio.Task[Elicitation]] = set()
        self.on_first: Callable[[], None] = _nothing
        self.has_ended = False  # True after the request has ended: it gets no more outcomes
        self.accounts = dict(accounts or {})  # grows by the accounts of this request
        self.of_earlier_requests = frozenset(self.accounts)
        self.hidden: set[str] = set()  # texts that no result or question may carry to the model
        self.has_begun_once = False
        self._inside_once = list[asyncio.Task[Any] | None]()  # tasks that run the work of `once`
        self._after_once: Callable[[], object] | None = None
        self.has_paid = False  # True once the body has seen a payment
        self.has_known = False  # True if an answer was used without a question
        self.again: bool | None = None  # set by `note_use`; None: no payment or `once` was used
        self.payments: list[str] = []  # ids of payments that the body has seen
        self.receipt: str | None = None  # id of the latest payment; None for a permanent purchase

    @property
    def has_claimed(self) -> bool:
        """True if this request has claimed an outcome."""
        return bool(self._is_used)

    @property
    def seen(self) -> list[str]:
        """The ids of the elicitations whose outcomes the body has seen."""
        return [id for id, is_used in self._is_used.items() if is_used]

    def unused_of(self, run: Run) -> set[str]:
        """Return the ids of the run's questions whose acceptances this request has not used."""
        asked = {asking.elicitation_id for asking in run.asked if not asking.is_used}
        return asked - self._accepted

    def record_prefetch(self, settled: Elicitation) -> bool:
        """Record that the write that settled the elicitation also claimed it for this request.

        Return False if the request has ended without this outcome. For a request that read the
        outcome from the store and claimed it before this method is called, return True.
        """
        if self.has_ended:
            return settled.id in self._is_used
        self._has(settled)
        return True

    async def claim(self, current: Elicitation, *, run: str) -> Elicitation | None:
        """Claim the outcome for this request. Return None if another request has claimed it."""
        is_claimed_here = current.take is not None and current.take.leg == self._request_id
        if is_claimed_here and self.is_shared and self._elicitations.is_held(current):
            self._held_before.add(current.id)
        if not is_claimed_here or self.is_shared:
            claiming = Uncancelled(
                self._elicitations.claim(
                    current.id, run=run, request_id=self._request_id, known=current
                )
            )
            self._unfinished_claims.add(claiming.task)
            try:
                current = await claiming.result
            except NotPossible:
                self._unfinished_claims.discard(claiming.task)
                return None
            # A cancelled request skips this line, so that `release_unused` releases the outcome.
            self._unfinished_claims.discard(claiming.task)
            if current.take is not None:
                self._until[current.id] = current.take.until
        self._has(current)
        return current

    def use(self, claimed: Elicitation) -> None:
        """Record that the body sees the outcome from now on."""
        self._is_used[claimed.id] = True
        if claimed.status is Status.ACCEPTED:
            self._accepted.add(claimed.id)

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
        await self._release(self.seen)

    async def ended(self) -> list[Elicitation]:
        """Return the used outcomes with ended leases. The caller has to write them.

        Another request then continues the run.
        """
        return await self._elicitations.possible(
            self.seen, lambda e: states.end_lease(e, request_id=self._request_id)
        )

    async def renew(self) -> None:
        await self._elicitations.each(
            list(self._is_used),
            lambda e: states.renew(e, request_id=self._request_id, now=self._elicitations.clock()),
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
        if self.is_shared and lease is not None and lease.until != self._until.get(current.id):
            return current  # another request with the same id has claimed the outcome since then
        return states.release(current, request_id=self._request_id)

    @property
    def must_finish(self) -> bool:
        """True if the body has a payment or began `once`: then only an explicit cancel ends it."""
        return self.has_paid or self.has_begun_once

    @property
    def is_inside_once(self) -> bool:
        return bool(self._inside_once)

    @contextmanager
    def inside_once(self) -> Generator[None]:
        """Mark the body as inside `once` until the result is stored."""
        self.has_begun_once = True
        self._inside_once.append(asyncio.current_task())
        try:
            yield
        finally:
            self._inside_once.remove(asyncio.current_task())
            if not self._inside_once and self._after_once is not None:
                self._after_once()

    @property
    def is_once_here(self) -> bool:
        """True if the current task runs the work of `once`."""
        return asyncio.current_task() in self._inside_once

    def when_outside_once(self, act: Callable[[], object]) -> None:
        """Run `act` now, or as soon as the body is outside `once`."""
        if self.is_inside_once:
            self._after_once = act
        else:
            act()

    def drop_accounts(self) -> None:
        """Drop the accounts of earlier requests: this call uses the person's current accounts."""
        for digest in self.of_earlier_requests:
            self.accounts.pop(digest, None)
        self.of_earlier_requests = frozenset[str]()

    def start_again(self) -> None:
        """Reset the state to that of a later request, because the tool's body starts again."""
        self.of_earlier_requests = frozenset(self.accounts)
        # `once` stores results under the receipt only after the payment's await has returned.
        self.receipt = None
        self.payments.clear()

    def note(self, fact: Fact, content: Json, request: Request | None = None) -> None:
        """Record the secret texts of an answer, and the id of its account or receipt."""
        kind, digest = fact
        traits = traits_of(kind)
        if traits.is_secret:
            schema = cast("Schema[Any] | None", getattr(request, "schema", None))
            texts = _texts(content) if schema is None else secrets_in(schema, content)
            self.hidden.update(texts)
        elif traits.gives == "account" and isinstance(content, Mapping):
            self.hidden.update(_texts([content.get("access_token"), content.get("dpop_key")]))
            self.accounts[digest] = str(content.get("connection"))
        elif traits.gives == "receipt" and isinstance(content, Mapping):
            self.has_paid = True
            self.payments.append(str(content.get("id")))
            # Many calls use one permanent purchase, so `once` results are not stored under it.
            is_for_good = bool(content.get("once"))
            self.receipt = None if is_for_good else str(content.get("id"))
            if not is_for_good:
                self.note_use(again=False)

    def must_hold_nothing_hidden(self, question: Json) -> None:
        """Check that the question contains no secret text. Raises InvalidQuestion."""
        if not self.hidden:
            return
        plain = json.loads(json.dumps(question))
        if masked(plain, self.hidden, is_quoting=False) != plain:
            raise InvalidQuestion(
                "The question contains a secret that the person typed in this call, or the access "
                "token of their account. Clients and models read questions. Remove the secret, and "
                "say what it is for instead, as in: Use the key of your weather service?"
            )

    def note_use(self, *, again: bool) -> None:
        """Record use of a payment or `once`.

        With `again`, an identical call may repeat the work.
        """
        self.again = again or bool(self.again)

    def noted(self, run: Run) -> Run:
        return run if self.again is None else runs.note_use(run, again=self.again)


def _nothing() -> None:
    pass


def _texts(content: Json) -> list[str]:
    match content:
        case str():
            return [content]
        case Mapping():
            return [text for value in content.values() for text in _texts(value)]
        case list() | tuple():
            return [text for value in content for text in _texts(value)]
        case int() | float() if not isinstance(content, bool):
            return [str(content)]
        case _:
            return []
