"""Secrets typed on our page: what a submitted form can change, and what it cannot."""

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import OnPage
from flows.kinds.secret import SecretTerms
from flows.schema.schema import schema_of
from tests.support.clock import Clock
from tests.support.service_env import process, question_in_store
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

TYPED: Json = {"value": "a secret"}


async def asked(service: Service, *, name: str | None = "door") -> Elicitation:
    question = question_in_store(service, kind="secret")
    terms = msgspec.to_builtins(SecretTerms(schema=schema_of(str).json, name=name))
    question = replace(question, request=replace(question.request, terms=terms))
    await service.elicitations.write(question)
    return question


async def test_secret_typed_in_time_is_accepted_and_stored_by_name(clock: Clock) -> None:
    async with process(MemoryStore(), clock) as here:
        question = await asked(here)
        await here.kinds.secrets.complete(question, TYPED, OnPage())
        stored = await here.elicitations.get(question.id)
        assert stored is not None
        assert (stored.status, stored.content) == (Status.ACCEPTED, TYPED)
        assert len(await here.elicitations.store.list("secret")) == 1


@pytest.mark.parametrize("ending", [Status.DECLINED, Status.CANCELLED, Status.SUPERSEDED])
async def test_secret_typed_after_question_ended_in_another_tab_is_ignored(
    clock: Clock, ending: Status
) -> None:
    async with process(MemoryStore(), clock) as here:
        question = await asked(here)
        await here.elicitations.settle(question.id, ending)
        await here.kinds.secrets.complete(question, TYPED, OnPage())
        stored = await here.elicitations.get(question.id)
        assert stored is not None
        assert (stored.status, stored.content) == (ending, None)
        assert not await here.elicitations.store.list("secret")


async def test_secret_typed_after_expiry_is_not_accepted(clock: Clock) -> None:
    async with process(MemoryStore(), clock) as here:
        question = await asked(here)
        clock.tick(seconds=timedelta(minutes=6).total_seconds())
        await here.kinds.secrets.complete(question, TYPED, OnPage())
        stored = await here.elicitations.get(question.id)
        assert stored is not None
        assert stored.content is None
        assert not await here.elicitations.store.list("secret")
