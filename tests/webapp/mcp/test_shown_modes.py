"""An answer counts for the mode that the client was shown, not for a later request's modes."""

from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    MODERN,
    URL,
    answered_in,
    asked_in,
    caller_of,
    soon,
    text_of,
)

RAN: list[str] = []


@pytest.fixture
def server(server: Any) -> Any:
    RAN.clear()

    @server.tool()
    @elicit.gate
    def gated() -> str:
        RAN.append("gated")
        return "done"

    @server.tool()
    async def confirmed() -> str:
        if await elicit.confirm("Sure?"):
            RAN.append("confirmed")
            return "done"
        return "no"

    return server


@pytest.mark.parametrize("declares", [FORM, BOTH], ids=["form", "both"])
@pytest.mark.parametrize("tool", ["gated", "confirmed"])
async def test_accepted_link_is_not_an_acceptance_in_a_later_request_with_forms(
    server, tool, declares
):
    # finding: S2
    async with (
        caller_of(server, MODERN, declares=URL, name="an agent") as (env, links),
        env.caller(MODERN, declares=declares, name="an agent") as forms,
    ):
        asked = await links.asked(tool)
        ((_, request),) = (asked.input_requests or {}).items()
        link: str = request.params.url  # type: ignore[union-attr]
        waiting = forms.start_request(tool, after=asked)
        (row,) = await env.pending()
        assert not row.status.is_final
        assert not RAN, "the tool does not run before the person opens the page"
        await (await env.person()).press(link)
        assert text_of(answered_in(await soon(waiting))) == "done"
        assert [tool] == RAN


@pytest.mark.parametrize("tool", ["gated", "confirmed"])
async def test_form_answer_counts_in_a_later_request_declaring_links_only(server, tool):
    # finding: S2
    async with (
        caller_of(server, MODERN, declares=BOTH, name="an agent") as (env, forms),
        env.caller(MODERN, declares=URL, name="an agent") as links,
    ):
        asked = await forms.asked(tool)
        assert text_of(answered_in(await soon(links.send_call(tool, after=asked)))) == "done"
        assert [tool] == RAN


async def test_unanswered_form_is_shown_again_in_the_mode_of_the_request(server):
    # finding: S2
    async with (
        caller_of(server, MODERN, declares=BOTH, name="an agent") as (env, forms),
        env.caller(MODERN, declares=URL, name="an agent") as links,
    ):
        asked = await forms.asked("gated")
        unanswered = asked.model_copy(update={"input_requests": {}})
        again = asked_in(await soon(links.send_call("gated", after=unanswered)))
        ((_, request),) = (again.input_requests or {}).items()
        assert request.params.mode == "url"  # type: ignore[union-attr]
        waiting = forms.start_request("gated", after=again)
        await env.pending()
        assert not RAN, "accepting the link does not approve the call"
        await (await env.person()).decline(request.params.url)  # type: ignore[union-attr]
        assert answered_in(await soon(waiting)).is_error


@pytest.mark.parametrize(("tool", "is_error"), [("gated", True), ("confirmed", False)])
async def test_accepted_link_of_a_session_does_not_accept_a_form_of_another_session(
    server, tool, is_error
):
    # finding: S2
    async with (
        caller_of(server, LEGACY, declares=URL, name="an agent") as (env, links),
        env.caller(LEGACY, declares=FORM, fills=["decline"], name="an agent") as forms,
    ):
        links.begin(tool)
        await links.link()
        await env.pending()
        result = await forms.result(tool)
        assert (result.is_error, text_of(result) == "no") == (is_error, not is_error)
        assert not RAN
