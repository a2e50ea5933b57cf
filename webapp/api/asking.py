"""Asking: a program's question goes the way of a tool's, up to the link.

What could go wrong: a request that is sent twice, since its answer was lost, and asks twice. So an
`Idempotency-Key` names the wish, as the arguments name that of a tool call: the same question under
it joins, another one under it is refused. It holds until the answer is taken. A run names a piece
of work that asks several: each has its place there, as in a tool call. Another program's question,
or one of a user that the key does not name, is not told from one that never was.
"""

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from flows.elicitation import states
from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import ToolCall, client_of
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone, ElicitError, InvalidQuestion, NotAllowed, NotPossible
from flows.kinds.secret import Secret
from flows.question import Outcome, Question, Request, asking
from webapp.api.access import PERSON_HEADER, Requester
from webapp.calls.call import Call
from webapp.calls.presenter import Interrupted, Leg, PresentedQuestion, Prompts
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter
from webapp.identity.api_keys import KeyScope
from webapp.identity.identity import Caller
from webapp.payments.payments import PaymentGone
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.records.values import ApiKey, Value
from webapp.service import Service

_SHOWN: Final = "shown"


class IdempotencyKeyReused(ElicitError):
    """An Idempotency-Key under which something else was asked."""

    name = "IDEMPOTENCY_KEY_REUSED"
    http_status = 409


class NoSuchQuestion(ElicitError):
    """An id that is none of a question of this key's."""

    name = "NO_SUCH_QUESTION"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "There is no question with this id, or it is none of this key's: use the id that came "
            "when it was asked."
        )


class QuestionBusy(ElicitError):
    """Another request is at the same question."""

    name = "QUESTION_BUSY"
    http_status = 409

    def __init__(self) -> None:
        super().__init__("Another request is at this question at the moment: send this one again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """Where a question stands in a run of the program's: how many equal ones came before it."""

    run: str
    nth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An answer that was there already; `content` is what `Question.answer` takes."""

    question: Question[Any]
    content: Json = field(repr=False)


def with_own_name(requester: Requester, question: Question[Any]) -> Question[Any]:
    """The question, with the name of a secret as its program's own."""
    request = question.request
    if not isinstance(request, Secret) or request.name is None:
        return question
    name = own_name(requester, request.name)
    return replace(question, request=replace(request, name=name))


def own_name(requester: Requester, name: str) -> str:
    """Under which a secret is kept: no tool's and no other program's name can be that."""
    return f"{client_of(requester.program.program)}/{name}"


async def ask(
    service: Service,
    requester: Requester,
    question: Question[Any],
    *,
    user: str | None,
    name: str | None,
    place: RunPlace | None = None,
) -> Elicitation | Known:
    """The question as it stands in the store, or what is known without asking anybody.

    `name` is the Idempotency-Key. Raises what the verb raises, IdempotencyKeyReused, and
    AlreadyDone where the run of `place` is over.
    """
    key, caller = requester.program, caller_of(service, requester, user)
    if place is None:
        call = call_of(service, key, caller, arguments=named_by(name))
    else:
        call = run_call_of(service, key, caller, run=place.run)
    verbs = _Verbs(call)
    outcome = None
    with service.bodies.at_work(call):
        call.begin()
        try:
            with asking(verbs, is_tool=False):
                if place is None:
                    outcome = await verbs.ask_under(question)
                else:
                    outcome = await verbs.ask_at(question, nth=place.nth)
        except Interrupted:
            if isinstance(call.answer, ElicitError):
                raise call.answer from None
            if place is not None and call.answer is not _SHOWN:
                raise AlreadyDone from None
        finally:
            await service.elicitations.whole(call.finish())
    asked = verbs.asked(is_placed=place is not None)
    if asked is not None:
        found = await service.elicitations.get(asked.elicitation_id)
        if found is not None:
            return found
    if outcome is None:
        raise NoSuchQuestion
    if outcome.error is not None:
        raise outcome.error
    return Known(question=question, content=verbs.known)


async def taken(service: Service, requester: Requester, current: Elicitation) -> Elicitation:
    """The program has used the answer: it is wiped, or spent.

    Raises QuestionBusy, PaymentGone where its money has gone back, and InvalidQuestion for one of a
    run, which is ended as a whole.

    Its run is over with it, so that the same Idempotency-Key is told the same for a while. A late
    answer may outlive its run.
    """
    elicitations, run = service.elicitations, None
    if current.run is not None:
        run = await elicitations.run(owner=current.owner, id=current.run)
    if run is None or run.called is None or run.called.arguments is None:
        await elicitations.whole(_used_up(service, current))
    elif "run" in json.loads(run.called.arguments):
        raise InvalidQuestion(
            "This question is one of a run, which ends as a whole: send POST /api/runs/end, with "
            "the name of the run and the questions that it used."
        )
    elif all(asked.elicitation_id != current.id for asked in run.asked):
        # It was answered late: under this Idempotency-Key the question was asked again.
        await elicitations.whole(_used_up(service, current))
    else:
        key, arguments = requester.program, run.called.arguments
        await _taken_by(service, key, current, run=run.id, arguments=arguments)
    return await elicitations.get(current.id) or current


async def _taken_by(
    service: Service, key: ApiKey, current: Elicitation, *, run: str, arguments: str
) -> None:
    caller = Caller(owner=current.owner, client=client_of(key.program), is_user=current.is_for_user)
    call = call_of(service, key, caller, arguments=arguments, run_id=run)
    with service.bodies.at_work(call):
        call.begin()
        try:
            await call.the_run()
            mine = await call.taken.take(current, run=run)
            if mine is None:
                raise QuestionBusy
            call.taken.use(mine)
            if (paid := await _paid(service, mine)) is not None:
                call.used.note((mine.kind, mine.asked.digest), paid)
            await service.elicitations.whole(call.end())
        except Interrupted:
            pass  # it was taken before
        except PaymentGone:
            await service.elicitations.whole(call.finish())
            raise


async def _paid(service: Service, mine: Elicitation) -> Json:
    """The payment of an outcome that was taken, if it is one. Raises PaymentGone."""
    if traits_of(mine.kind).gives != "receipt":
        return None
    paid: Json = msgspec.to_builtins(await service.kinds.payments.usable(mine))
    return paid


async def must_have_its_money(
    service: Service, delivered: Elicitation, *, run: str | None = None
) -> None:
    """Raises PaymentGone for a payment that went back before it was used, or another run used."""
    paid = await service.kinds.payments.paid(delivered)
    if paid is None:
        return
    lease = delivered.take
    is_its_own = run in (None, paid.spent_by, None if lease is None else lease.run) or paid.once
    is_used = paid.spent_at is not None
    if (paid.is_over and not is_used) or (is_used and not is_its_own):
        raise PaymentGone(paid)


async def _used_up(service: Service, current: Elicitation) -> None:
    elicitations, leg = service.elicitations, secrets.token_urlsafe(12)
    try:
        mine = await elicitations.take(current.id, run=leg, leg=leg)
    except NotPossible:
        raise QuestionBusy from None
    try:
        await _paid(service, mine)
    except PaymentGone:
        await elicitations.each([mine.id], lambda e: states.release(e, leg=leg))
        raise

    async def rows() -> Sequence[Value]:
        delivered = await elicitations.possible(
            [mine.id], lambda e: states.deliver(e, run=leg, now=service.clock())
        )
        also = await service.kinds[mine.kind].used_up(mine) if delivered else ()
        return [*delivered, *also]

    await elicitations.write_afresh(rows)


def owner_for(service: Service, requester: Requester, user: str | None) -> str:
    """Whom a request is about. Raises InvalidQuestion, NotAllowed."""
    user = _user(requester, user)
    if user is not None:
        return owner_of_user(service, user)
    assert requester.person is not None
    assert requester.person.owner is not None
    return requester.person.owner


def _user(requester: Requester, user: str | None) -> str | None:
    """The user that is meant; None for a person, who is known by their access token."""
    if requester.person is not None:
        if user is not None:
            raise InvalidQuestion("Leave `user` out: the access token says who it is about.")
        return None
    owners = requester.program.owners
    if user is None and len(owners) == 1:
        return owners[0]
    if user is None:
        raise InvalidQuestion(
            "Say whose: write `user`, with an id of one of your users, or send the access token of "
            f"a person as {PERSON_HEADER}."
        )
    if owners and user not in owners:
        raise NotAllowed(
            "This key is for other users: `elicit api-keys list` shows its owners, and `elicit "
            "api-keys new --owner` makes one for this user."
        )
    return user


def caller_of(service: Service, requester: Requester, user: str | None) -> Caller:
    """Raises NotConfigured where no browser could be told as this user's."""
    user = _user(requester, user)
    caller = requester.person if user is None else service.identity.caller_of_user(user)
    assert caller is not None
    asker = client_of(requester.program.program)
    return replace(caller, client=asker, is_client_verified=False)


def owner_of_user(service: Service, user: str) -> str:
    return service.elicitations.owners.tag_of_user(user, application=application_of(service))


def application_of(service: Service) -> str:
    assert service.users is not None  # of a service that serves an application
    return service.users.application


async def question_of(service: Service, requester: Requester, id: str) -> Elicitation:
    """The question with this id that they may see. Raises NoSuchQuestion."""
    found = await service.elicitations.get(id) if len(id) > OWNER_TAG_CHARACTERS else None
    if found is None or not is_seen_by(service, requester, found):
        raise NoSuchQuestion
    return found


def is_seen_by(service: Service, requester: Requester, question: Elicitation) -> bool:
    """Whether its program asked it, of that person or of a user.

    A person alone sees all that they are asked, a key that approves what it may answer.
    """
    if question.asked.server != application_of(service):
        return False
    key, person = requester.key, requester.person
    if person is not None:
        if question.is_for_user or question.owner != person.owner:
            return False
        return key is None or question.asked.tool == client_of(key.program)
    assert key is not None
    if not (question.is_for_user and _is_among(service, key.owners, question.owner)):
        return False
    if KeyScope.APPROVE in key.scopes:
        traits = traits_of(question.kind)
        return bool(key.owners) and traits.fits_client_form and not traits.is_gate
    return question.asked.tool == client_of(key.program)


def _is_among(service: Service, owners: Collection[str], owner: str) -> bool:
    return not owners or owner in {owner_of_user(service, user) for user in owners}


def named_by(name: str | None) -> str:
    """What stands for a tool's arguments: the Idempotency-Key, or nothing that there was before."""
    return json.dumps({"request": secrets.token_urlsafe(18)} if name is None else {"key": name})


def run_call_of(service: Service, key: ApiKey, caller: Caller, *, run: str) -> Call:
    """A request of a program's run. All of them are one leg, which holds what the run claims."""
    assert caller.owner is not None
    pepper = service.elicitations.owners.pepper
    leg = pepper.tag("leg of a run", caller.owner, client_of(key.program), run)
    arguments = json.dumps({"run": run})
    return call_of(service, key, caller, arguments=arguments, leg=leg)


def call_of(
    service: Service,
    key: ApiKey,
    caller: Caller,
    *,
    arguments: str,
    run_id: str | None = None,
    leg: str | None = None,
) -> Call:
    return service.call(
        caller,
        ToolCall(
            server=application_of(service),
            tool=client_of(key.program),
            client=key.program,
            arguments=arguments,
        ),
        presenter=_ByProgram(),
        run_id=run_id,
        leg=leg,
    )


class _Verbs(Verbs):
    """Those of one request."""

    known: Json = None  # for which nobody was asked
    _stands_at: Step | None = None

    def asked(self, *, is_placed: bool) -> AskedStep | None:
        """What the run has of it; without a place the one question of the run."""
        if not self.call.run.is_loaded:
            return None
        run = self.call.run.value
        if self._stands_at is not None:
            return run.at(self._stands_at)
        return run.asked[-1] if run.asked and not is_placed else None

    async def ask_at(self, question: Question[Any], *, nth: int) -> Outcome[Any]:
        """Ask it where so many equal ones came before it."""
        self._counts[self.fact(question.request)] = nth
        return await question.outcome()

    async def _ask_at(self, step: Step, question: Question[Any], group: Prompts) -> Outcome[Any]:
        self._stands_at = step
        return await super()._ask_at(step, question, group)

    async def _known(self, request: Request, digest: str, asking: AskedStep | None) -> Json | None:
        self.known = await super()._known(request, digest, asking)
        return self.known

    async def ask_under(self, question: Question[Any]) -> Outcome[Any]:
        """Ask it, unless its Idempotency-Key stands for another one."""
        fact = self.fact(question.request)
        self._questions.check = _must_be_asked_alone  # by another request at the same moment, too
        try:
            await self.call.the_run()
        finally:
            if self.call.run.is_loaded:
                _must_be_asked_alone(self.call.run.value, Step(kind=fact[0], digest=fact[1], nth=0))
        return await question.outcome()


def _must_be_asked_alone(run: Run, step: Step) -> None:
    """Raises IdempotencyKeyReused."""
    for asked in run.asked:
        if (asked.place.kind, asked.place.digest) != (step.kind, step.digest):
            raise IdempotencyKeyReused(
                "Something else was asked under this Idempotency-Key: send the same body again, "
                "or take another key for another question."
            )


class _ByProgram:
    """Presents to a program: it is handed the link, and waits for itself."""

    def can(self, mode: str) -> bool:
        return mode == "url"

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return False

    def carry(self, call: Leg, state: object) -> object:
        return state

    async def heed(self, call: Leg) -> None:
        pass  # nobody answers but on the page, or by a key that approves

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now

    def busy(self) -> ElicitError:
        return QuestionBusy()

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        call.interrupt(_SHOWN)
