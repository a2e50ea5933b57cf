"""`repr()` of our values in tracebacks and logs: no secret, no content, no URL with a token."""

from flows import elicit
from flows.elicitation.run import Run
from flows.elicitation.states import Status
from flows.question import Link, Outcome, current_asker
from tests.support.mcp_server import MODERN, RING, caller_of, links_asked, new_server
from webapp.calls.presenter import PresentedQuestion
from webapp.calls.verbs import Verbs


async def test_repr_of_a_call_and_its_presenter_shows_no_argument(revision: str):
    server = new_server("mcp")
    shown: list[str] = []

    @server.tool()
    async def pay(card: str) -> str:
        call = current_asker()
        assert isinstance(call, Verbs)
        shown.extend(map(repr, (call, call.call, call.call.presenter)))
        return card

    async with caller_of(server, revision) as (_, caller):
        assert await caller.text("pay", card=CARD) == CARD
    assert len(shown) == 3
    assert not any(CARD in text for text in shown)


CARD = "4242424242424242"
LOGIN = "https://example.org/login"


async def test_repr_shows_no_secret_content_or_tokenized_url():
    server = new_server("mcp")
    given: list[Link] = []

    @server.tool()
    async def pay() -> str:
        def address(link: Link) -> str:
            given.append(link)
            return f"{LOGIN}?back={link.return_token}"

        await elicit.url("Pay", address, origins=["https://example.org"])
        return CARD

    async with caller_of(server, MODERN) as (env, caller):
        (url,) = links_asked(await caller.send_call("pay"))
        await env.complete(url, {"card": CARD})
        (row,) = await env.elicitations()
        assert row.content == {"card": CARD}
        run = Run(
            id="r",
            owner=row.owner,
            key="k",
            created_at=row.created_at,
            open_until=row.expires_at,
            responses=CARD,
            result=CARD,
        )
        (link,) = given
        reprs = [
            repr(value)
            for value in (
                env.service,
                env.settings,
                row,
                run,
                Outcome(status=Status.ACCEPTED, content=CARD),
                PresentedQuestion(elicitation=row, link=lambda: url, index=0, is_again=False),
                link,
            )
        ]
        secrets = [CARD, url.rsplit("/", 1)[1], link.return_token, link.callback_url]
        secrets += [repr(key) for key in env.service.request_state_keys()]
        secrets += [repr(b"k" * 32), "k" * 32, repr(RING.derive(RING.newest, "csrf"))]
        shown = [(secret, text) for text in reprs for secret in secrets if secret in text]
        assert not shown
