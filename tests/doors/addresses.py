"""Addresses and headers in a provider's responses, and who receives them."""

import httpx

from tests.doors.rules import ANSWERING, ASKING, ENTERING, STORES, Door, Rule, every
from tests.doors.world import World
from webapp.api.proxy import _response_headers
from webapp.http.address import PublicAddress


async def _response_names_no_route_of_this_server(world: World, _: Door) -> None:
    # finding: XS2
    public_address = PublicAddress.parse(world.env.here.url)
    asked = httpx.URL("https://api.tracker.example/issues/7")
    plain = {"x-next-page": "2", "etag": 'W/"a/b"', "content-disposition": 'inline; filename="a/b"'}
    assert (
        _response_headers(
            httpx.Response(200, headers=plain), asked, tokens=set(), public_address=public_address
        )
        == plain
    )
    for template in ("/api/approvals", "//{0}/api", "http://{0}/api/approvals"):
        address = template.format(world.env.here.url.removeprefix("http://"))
        passed = ("location", "content-location", "x-next-page", "x-ratelimit-reset")
        hostile = dict.fromkeys((*passed, "refresh", "x-any"), address)
        reply = httpx.Response(307, headers={**hostile, "link": f"<{address}>; rel=next"})
        headers = _response_headers(reply, asked, tokens=set(), public_address=public_address)
        assert set(headers) <= {*passed, "link"}
        for text in headers.values():
            assert text.lstrip("<").startswith("https://api.tracker.example/")


RULES = [
    Rule(
        id="providers-address",
        says="A provider's response cannot name a route of this server",
        source="promise 13",
        cells={
            Door.PROXY: _response_names_no_route_of_this_server,
            Door.CALLBACK: "`flows.origin` checks the complete address of a provider before "
            "a browser gets it, and allows only origins from the operator's "
            "settings or the issuer's metadata",
            Door.WEBHOOK: "the server reads only the facts of an event, and neither calls "
            "nor shows an address in it",
            Door.EVENT: "the server reads only the status and `Retry-After` of a "
            "receiver's response",
            Door.CLIENT: "the client sends redirects through the proxy again",
            **every(
                [door for door in ASKING if door is not Door.CLIENT],
                "the account's HTTP client talks to the provider directly, "
                "without an API key of this server",
            ),
            **every(ANSWERING, "no provider sends a response here"),
            Door.HOOK: "no provider sends a response here",
            **every(
                ENTERING,
                "the server reads the issuer's addresses from the issuer's "
                "metadata, as complete URLs",
            ),
            Door.OWN_PAGES: "no page requests or shows the address of a picture",
            Door.COMMAND: "a command prints addresses and does not open them",
            **every(STORES, "no provider has access to a store"),
        },
    ),
]
