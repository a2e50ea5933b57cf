"""Questions that programs ask over HTTP.

The same code asks these questions and those of a tool call. The program then gets the link.

Risks: a program sends a request again because the response was lost, and the person is asked twice.
So an `Idempotency-Key` identifies the request, as the arguments identify a tool call: the same
question under the same key joins the first one, and a different question is refused. The key is
valid until the answer is used. A run names a unit of work with several questions, and each question
has its place in the run, as in a tool call. For a question of another program, or of a
user that the key does not name, the response is the same as for an id that never existed.
"""

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from flows.elicitation import states
from flows.elicitation.run import AskedStep, Run
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import ToolCall, client_of
from flows.elicitation.traits import traits_of
from flows.errors import AlreadyDone, ElicitError, InvalidQuestion, NotAllowed, NotPossible
from flows.kinds.secret import Secret
from flows.question import Question, asking
from webapp.api.access import PERSON_HEADER, Requester
from webapp.calls.call import Call, Interrupted, Presenter
from webapp.calls.presenter import PresentedQuestion
from webapp.calls.verbs import Verbs
from webapp.elicitations.waiters import Waiter
from webapp.identity.api_keys import KeyScope
from webapp.identity.identity import Caller
from webapp.payments.payments import PaymentGone
from webapp.records.ids import OWNER_TAG_CHARACTERS
from webapp.records.values import ApiKey, Value
from webapp.service import Service

_SHOWN: Final = "shown"


class NoSuchQuestion(ElicitError):
    """The key has no question with this id."""

    name = "NO_SUCH_QUESTION"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "No question with this id exists, or it does not belong to this key: use the id from "
            "the response to the question."
        )


class QuestionBusy(ElicitError):
    """Another request is working on the same question."""

    name = "QUESTION_BUSY"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "Another request is using this question at the moment: send this request again."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """A question's place in a run: the run's name, and the number of earlier equal questions."""

    run: str
    nth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """An answer that was already available; `content` is the argument of `Question.answer`."""

    question: Question[Any]
    content: Json = field(repr=False)


def with_own_name(requester: Requester, question: Question[Any]) -> Question[Any]:
    """Return the question, with the name of a secret prefixed by the program's name."""
    request = question.request
    if not isinstance(request, Secret) or request.name is None:
        return question
    name = own_name(requester, request.name)
    return replace(question, request=replace(request, name=name))


def own_name(requester: Requester, name: str) -> str:
    """Return the name under which a program's secret is stored.

    Tools and other programs cannot use this name.
    """
    return f"{client_of(requester.program.program)}/{name}"


async def ask(
    requester: Requester,
    question: Question[Any],
    *,
    user: str | None,
    name: str | None,
    place: RunPlace | None = None,
) -> Elicitation | KnownAnswer:
    """Ask the question. Return the stored elicitation, or an answer that is already known.

    `name` is the Idempotency-Key.

    Raises:
        AlreadyDone: The run of `place` has ended.
        ElicitError: An error of asking the question, as in a tool call, or a different question
            was asked with this key.
    """
    service = requester.service
    key, caller = requester.program, caller_of(requester, user)
    if place is None:
        call = call_of(service, key, caller, arguments=named_by(name), asks_once=True)
    else:
        call = run_call_of(service, key, caller, run=place.run)
    verbs, outcome = Verbs(call), None
    with service.running_tools.at_work(call):
        try:
            with asking(verbs, is_tool=False):
                if place is not None:
                    verbs.count_from(place.nth, question.request)
                outcome = await question.outcome()
        except Interrupted:
            pass  # the question has a link, see `_ByProgram.wait`
        except AlreadyDone:
            if place is not None:
                raise
        finally:
            await service.elicitations.run_to_completion(call.finish())
    asked = _step_of(verbs, is_placed=place is not None)
    if asked is not None:
        found = await service.elicitations.get(asked.elicitation_id)
        if found is not None:
            return found
    if outcome is None:
        raise NoSuchQuestion
    if outcome.error is not None:
        raise outcome.error
    return KnownAnswer(question=question, content=verbs.last_known)


async def mark_used(requester: Requester, current: Elicitation) -> Elicitation:
    """Record that the program has used the answer: erase the answer, or mark the payment as spent.

    The question's run ends too, so the same Idempotency-Key returns the same result for a while. An
    answer that arrived late can be used after its run has ended.

    Raises:
        QuestionBusy: Another request is using the answer.
        PaymentGone: The payment was refunded or disputed.
        InvalidQuestion: The question belongs to a run of several questions, which ends as a unit.
    """
    service = requester.service
    elicitations, run = service.elicitations, None
    if current.run is not None:
        run = await elicitations.read(Run, owner=current.owner, id=current.run)
    if run is None or run.called is None or run.called.arguments is None:
        await elicitations.run_to_completion(_used_up(service, current))
    elif "run" in json.loads(run.called.arguments):
        raise InvalidQuestion(
            "This question belongs to a run, which ends as a whole: send POST /api/runs/end with "
            "the name of the run and the questions that it used."
        )
    elif all(asked.elicitation_id != current.id for asked in run.asked):
        # The answer came late: the run has asked the question again in the meantime.
        await elicitations.run_to_completion(_used_up(service, current))
    else:
        key, arguments = requester.program, run.called.arguments
        await _use_in_run(service, key, current, run=run.id, arguments=arguments)
    return await elicitations.get(current.id) or current


async def _use_in_run(
    service: Service, key: ApiKey, current: Elicitation, *, run: str, arguments: str
) -> None:
    caller = Caller(owner=current.owner, client=client_of(key.program), is_user=current.is_for_user)
    call = call_of(service, key, caller, arguments=arguments, run_id=run)
    with service.running_tools.at_work(call):
        try:
            await call.current_run()
            if not await call.use(current):
                raise QuestionBusy
            await service.elicitations.run_to_completion(call.end())
        except Interrupted:
            pass  # the answer was used before
        except PaymentGone:
            await service.elicitations.run_to_completion(call.finish())
            raise


async def check_payment(
    service: Service, delivered: Elicitation, *, run: str | None = None
) -> None:
    """Check the elicitation's payment, if it has one.

    Raises PaymentGone if the payment was refunded or disputed before it was used, or if another run
    used it.
    """
    paid = await service.kinds.payments.ledger.paid(delivered)
    if paid is None:
        return
    lease = delivered.take
    is_its_own = run in (None, paid.spent_by, None if lease is None else lease.run) or paid.once
    is_used = paid.spent_at is not None
    if (paid.has_ended and not is_used) or (is_used and not is_its_own):
        raise PaymentGone(paid)


async def _used_up(service: Service, current: Elicitation) -> None:
    elicitations, request_id = service.elicitations, secrets.token_urlsafe(12)
    try:
        mine = await elicitations.claim(current.id, run=request_id, request_id=request_id)
    except NotPossible:
        raise QuestionBusy from None
    try:
        if traits_of(mine.kind).gives == "receipt":
            await service.kinds.payments.usable(mine)
    except PaymentGone:
        await elicitations.each([mine.id], lambda e: states.release(e, request_id=request_id))
        raise

    async def rows() -> Sequence[Value]:
        delivered = await elicitations.possible(
            [mine.id], lambda e: states.deliver(e, run=request_id, now=service.clock())
        )
        also = await service.kinds[mine.kind].used_up(mine) if delivered else ()
        return [*delivered, *also]

    await elicitations.write_rebuilt(rows)


def owner_for(requester: Requester, user: str | None) -> str:
    """Return the owner whose data a request is about. Raises InvalidQuestion or NotAllowed."""
    user = _user(requester, user)
    if user is not None:
        return owner_of_user(requester.service, user)
    assert requester.person is not None
    assert requester.person.owner is not None
    return requester.person.owner


def teams_for(requester: Requester, user: str | None) -> tuple[str, ...]:
    """Return the names of the person's teams, according to their own token or to the settings.

    Raises InvalidQuestion or NotAllowed.
    """
    user = _user(requester, user)
    if user is not None:
        return requester.service.identity.teams_of_user(user)
    return () if requester.person is None else requester.person.teams


def owners_listed(requester: Requester, user: str | None) -> Sequence[str | None]:
    """Return the owners whose rows a list reads; None means the rows of every owner.

    Without `user`, these are the users that the key names. A key without named users lists all
    questions that its program asked. Raises InvalidQuestion or NotAllowed.
    """
    if user is not None or requester.person is not None:
        return [owner_for(requester, user)]
    return sorted(owner_of_user(requester.service, each) for each in requester.program.owners) or [
        None
    ]


def _user(requester: Requester, user: str | None) -> str | None:
    """Return the named user; None for a person's token. Raises InvalidQuestion or NotAllowed."""
    if requester.person is not None:
        if user is not None:
            raise InvalidQuestion("Leave `user` out: the access token identifies the person.")
        return None
    owners = requester.program.owners
    if user is None and len(owners) == 1:
        return owners[0]
    if user is None:
        raise InvalidQuestion(
            "The user is missing: set `user` to the id of one of your users, or send a person's "
            f"access token as {PERSON_HEADER}."
        )
    if owners and user not in owners:
        raise NotAllowed(
            "This key is for other users: `elicit api-keys list` shows its owners, and `elicit "
            "api-keys new --owner` creates a key for this user."
        )
    return user


def caller_of(requester: Requester, user: str | None) -> Caller:
    """Return the caller. Raises NotConfigured if the server cannot recognize the user's browser."""
    user = _user(requester, user)
    caller = requester.person if user is None else requester.service.identity.caller_of_user(user)
    assert caller is not None
    asker = client_of(requester.program.program)
    return replace(caller, client=asker, is_client_verified=False)


def owner_of_user(service: Service, user: str) -> str:
    return service.elicitations.owners.tag_of_user(user, application=application_of(service))


def application_of(service: Service) -> str:
    assert service.identity.users is not None  # set, as the service serves an application
    return service.identity.users.application


async def question_of(requester: Requester, id: str) -> Elicitation:
    """Return the question with this id. Raises NoSuchQuestion if the requester must not see it."""
    found = await requester.service.elicitations.get(id) if len(id) > OWNER_TAG_CHARACTERS else None
    if found is None or not is_seen_by(requester, found):
        raise NoSuchQuestion
    return found


def is_seen_by(requester: Requester, question: Elicitation) -> bool:
    """Return True if the requester may see the question.

    A program sees the questions that it asked. A person without a key sees all questions that they
    are asked. A key that approves sees the questions that it may answer.
    """
    service = requester.service
    if question.request.server != application_of(service):
        return False
    key, person = requester.key, requester.person
    if person is not None:
        if question.is_for_user or question.owner != person.owner:
            return False
        return key is None or question.request.tool == client_of(key.program)
    assert key is not None
    if not (question.is_for_user and _is_among(service, key.owners, question.owner)):
        return False
    if KeyScope.APPROVE in key.scopes:
        traits = traits_of(question.kind)
        return bool(key.owners) and traits.fits_client_form and not traits.is_gate
    return question.request.tool == client_of(key.program)


def _is_among(service: Service, owners: Collection[str], owner: str) -> bool:
    return not owners or owner in {owner_of_user(service, user) for user in owners}


def named_by(name: str | None) -> str:
    """Return JSON that identifies the request, as the arguments identify a tool call.

    `name` is the Idempotency-Key. Without a key, the JSON is random.
    """
    return json.dumps({"request": secrets.token_urlsafe(18)} if name is None else {"key": name})


def run_call_of(service: Service, key: ApiKey, caller: Caller, *, run: str) -> Call:
    """Return the call of a program's run.

    All requests of the run have the same id, so they share the claims of the run.
    """
    assert caller.owner is not None
    pepper = service.elicitations.owners.pepper
    request_id = pepper.tag("leg of a run", caller.owner, client_of(key.program), run)
    arguments = json.dumps({"run": run})
    return call_of(service, key, caller, arguments=arguments, request_id=request_id)


def call_of(
    service: Service,
    key: ApiKey,
    caller: Caller,
    *,
    arguments: str,
    run_id: str | None = None,
    request_id: str | None = None,
    asks_once: bool = False,
) -> Call:
    return Call(
        service,
        caller,
        ToolCall(
            server=application_of(service),
            tool=client_of(key.program),
            client=key.program,
            arguments=arguments,
        ),
        presenter=_ByProgram(),
        run_id=run_id,
        asks_once=asks_once,
        request_id=request_id,
    )


def _step_of(verbs: Verbs, *, is_placed: bool) -> AskedStep | None:
    """Return the question's step in the run.

    If this request asked nobody, return the run's last step, unless `is_placed` is True.
    """
    if not verbs.call.run.is_loaded:
        return None
    run = verbs.call.run.value
    if verbs.last_step is not None:
        return run.at(verbs.last_step)
    return run.asked[-1] if run.asked and not is_placed else None


class _ByProgram(Presenter):
    """The presenter for programs, which receive the link at once and wait by polling the API."""

    def can(self, mode: str) -> bool:
        return mode == "url"

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now

    def busy(self) -> ElicitError:
        return QuestionBusy()

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        call.interrupt(_SHOWN)
