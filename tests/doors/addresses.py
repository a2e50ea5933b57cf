"""Addresses and headers in a provider's responses, and who receives them."""

import httpx

from tests.doors.rules import ANSWERING, ASKING, ENTERING, STORES, Door, Rule, every
from tests.doors.world import World
from webapp.api.proxy import _headers_told
from webapp.http.address import PublicAddress


async def _names_no_route_of_ours(world: World, _: Door) -> None:
    # finding: XS2
    ours = PublicAddress.parse(world.env.here.url)
    asked = httpx.URL("https://api.tracker.example/issues/7")
    plain = {"x-next-page": "2", "etag": 'W/"a/b"', "content-disposition": 'inline; filename="a/b"'}
    assert (
        _headers_told(httpx.Response(200, headers=plain), asked, tokens=set(), ours=ours) == plain
    )
    for said in ("/api/approvals", "//{0}/api", "http://{0}/api/approvals"):
        address = said.format(world.env.here.url.removeprefix("http://"))
        passed = ("location", "content-location", "x-next-page", "x-ratelimit-reset")
        hostile = dict.fromkeys((*passed, "refresh", "x-any"), address)
        reply = httpx.Response(307, headers={**hostile, "link": f"<{address}>; rel=next"})
        headers = _headers_told(reply, asked, tokens=set(), ours=ours)
        assert set(headers) <= {*passed, "link"}
        for text in headers.values():
            assert text.lstrip("<").startswith("https://api.tracker.example/")


RULES = [
    Rule(
        id="providers-address",
        says="Nothing that a provider says names a route of this server",
        source="promise 13",
        cells={
            Door.PROXY: _names_no_route_of_ours,
            Door.CALLBACK: "an address of a provider for a browser passes `flows.origin` as a "
            "whole address, at origins that the operator or the issuer's metadata names",
            Door.WEBHOOK: "it is read for its facts; no address in it is called or shown",
            Door.EVENT: "a receiver's answer is read for its status and `Retry-After` alone",
            Door.CLIENT: "a redirect of an account's client comes back to the proxy",
            **every(
                [door for door in ASKING if door is not Door.CLIENT],
                "an account's own client talks to the provider itself, without a key of ours",
            ),
            **every(ANSWERING, "no provider answers here"),
            Door.HOOK: "no provider answers here",
            **every(ENTERING, "the issuer's addresses come from its metadata, as whole ones"),
            Door.OWN_PAGES: "the address of a picture is neither requested nor shown on a page",
            Door.COMMAND: "a command prints addresses and follows none",
            **every(STORES, "no provider reaches a store"),
        },
    ),
]
