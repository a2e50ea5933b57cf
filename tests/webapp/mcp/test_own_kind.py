"""A custom kind of question next to the built-in ones: one declaration and one class."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import InClient, OnPage, Traits, declared, traits_of
from flows.kinds.form import FormTerms
from flows.question import Question
from tests.support.mcp_server import caller_of, new_server, soon, text_of
from webapp.kinds.registry import OwnKind
from webapp.records.values import Value

SIGNATURE = Traits(
    name="signature",
    page="form",
    proofs=(OnPage, InClient),
    stored_for_after_answer=timedelta(minutes=1),
    fits_client_form=True,
    stops_what_follows=True,
)
NAME: Json = {"name": {"type": "string", "title": "Your full name"}}


class Signatures(OwnKind):
    traits = SIGNATURE
    signed: list[Json]

    async def written_with(
        self, accepted: Elicitation, answer: Json, ticks: Collection[str]
    ) -> Sequence[Value]:
        self.signed = [*getattr(self, "signed", []), answer]
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    document: str
    kind = "signature"

    @property
    def terms(self) -> FormTerms:
        schema: Json = {"type": "object", "properties": NAME, "required": ["name"]}
        return FormTerms(schema=schema, arguments={"document": self.document})

    def facts(self) -> Json:
        return {"document": self.document}


def sign(document: str) -> Question[str]:
    return Question(
        message="Sign it?",
        request=Signature(document=document),
        answer=lambda content: str(content["name"]),  # type: ignore[index,call-overload]
    )


@pytest.fixture
def server(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def lease(flat: int) -> str:
        return f"Signed by {await sign(f'Lease of flat {flat}')}."

    @server.tool()
    async def forgotten() -> str:
        _ = sign("Lease of flat 1")
        return "Signed."

    return server


async def test_custom_kind_is_a_form_in_the_client(server, revision):
    answered = [{"name": "Ada Lovelace"}]
    async with caller_of(server, revision, kinds=[Signatures], fills=answered) as (env, caller):
        assert await caller.text("lease", flat=7) == "Signed by Ada Lovelace."
        assert "Lease of flat 7" in caller.forms[0].message
        (row,) = await env.elicitations()
        assert (row.kind, row.status) == ("signature", Status.ACCEPTED)
        assert env.service.kinds["signature"].signed == answered  # type: ignore[attr-defined]


async def test_custom_kind_is_a_page(server, revision):
    url = types.ElicitationCapability(url=types.UrlElicitationCapability())
    async with caller_of(server, revision, kinds=[Signatures], declares=url) as (env, caller):
        call = caller.call("lease", flat=7)
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        assert "Lease of flat 7" in page.text, "the page shows the document to sign"
        given = {"csrf": page.csrf, "answer.name": "Ada Lovelace"}
        assert (await person.browser.post(link, data=given)).status_code == 303
        assert text_of(await soon(call)) == "Signed by Ada Lovelace."
        assert (await person.visit(link)).heading == "Sent"


async def test_custom_kind_uses_its_declared_traits(server, revision):
    async with caller_of(server, revision, kinds=[Signatures], name="it") as (env, caller):
        assert "await" in await caller.text("forgotten")
        assert not await env.elicitations()
    assert traits_of("signature") == Traits(name="signature", page="form"), (
        "traits declared for one server are not known outside it"
    )


def test_custom_kind_with_a_reserved_name_is_refused():
    used = Traits(name="form", page="form")
    with pytest.raises(ValueError, match="Give this kind another name"), declared({"form": used}):
        pass
