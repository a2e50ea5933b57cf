"""A provider redirects a proxied request: following the redirect must not reach our routes."""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin

from tests.outside.asked_programs import AskedPrograms, programs_on
from tests.support.serving import serving
from webapp.http.exchange import Receive, Scope, Send

FINDING = "XS2"
_TABLE = """
[providers.tracker]
label = "Tracker"
authorize = "{url}/authorize"
token = "{url}/token"
api = "{url}"
person = {{ url = "{url}/me", id = "id", label = "login" }}
has_scopes = false
"""


class Tracker:
    """An account provider that redirects every request outside OAuth to `leads_to`."""

    def __init__(self) -> None:
        self.leads_to = ""
        self.status = 307

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        asked = {name: text[0] for name, text in parse_qs(scope["query_string"].decode()).items()}
        headers, content = [(b"content-type", b"application/json")], b""
        match scope["path"]:
            case "/authorize":
                back = urlencode({"code": "c", "state": asked["state"]})
                status = 302
                headers.append((b"location", f"{asked['redirect_uri']}?{back}".encode()))
            case "/token":
                status, reported = 200, {"access_token": "a-token-of-anns", "token_type": "bearer"}
                content = json.dumps(reported).encode()
            case "/me":
                status, content = 200, b'{"id": 7, "login": "ann"}'
            case _:
                status = self.status
                headers.append((b"location", self.leads_to.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    tracker = Tracker()
    with tempfile.TemporaryDirectory() as folder:
        async with serving(tracker) as url:
            config = Path(folder) / "elicit.toml"
            config.write_text(_TABLE.format(url=url), "utf-8")
            about = {
                "ELICIT_CONFIG": str(config),
                "ELICIT_TRACKER_CLIENT_ID": "id",
                "ELICIT_TRACKER_CLIENT_SECRET": "secret",
            }
            async with programs_on("sqlite", Path(folder), **about) as served:
                for number in range(times):
                    async for case in _at(served, tracker, url, number):
                        yield case


async def _at(
    served: AskedPrograms, tracker: Tracker, url: str, number: int
) -> AsyncIterator[tuple[str, bool]]:
    shop = await served.key(f"shop {number}", "ask", "tokens")
    asked = await served.ask(shop, kind="oauth", provider="tracker")
    if asked["id"] is not None:
        await served.do(shop, asked, url)
        asked = (await served.http.get(f"/api/questions/{asked['id']}", headers=shop)).json()
    account = asked["account"]["id"]
    victim = await served.ask(shop, kind="confirm", message="Delete it?")
    proxy = f"/api/accounts/{account}/proxy?{urlencode({'user': 'ann', 'url': f'{url}/issues'})}"
    for method, status, path in (
        ("POST", 307, f"/api/questions/{victim['id']}/cancel"),
        ("GET", 302, f"/api/accounts/{account}/token?user=ann"),
        ("DELETE", 308, f"/api/accounts/{account}?user=ann"),
    ):
        for spelled, leads_to in (("relative", path), ("whole", served.url + path)):
            tracker.status, tracker.leads_to = status, leads_to
            answer = await served.http.request(method, proxy, headers=shop)
            location = answer.headers.get("location")
            reached = urljoin(str(answer.url), location) if location else ""
            yield (
                f"{method}, {spelled}: does not match any route of the server",
                not reached.startswith(served.url),
            )
            followed = await served.http.request(
                method, proxy, headers=shop, follow_redirects=bool(reached.startswith(served.url))
            )
            yield f"{method}, {spelled}: shows no token", "a-token-of-anns" not in followed.text
    data = (await served.http.get(f"/api/questions/{victim['id']}", headers=shop)).json()
    yield "the question is still open", data["status"] == "pending"
    accounts = await served.http.get("/api/accounts?user=ann", headers=shop)
    yield "the account is still connected", account in accounts.text
    tracker.leads_to = "/issues/8"
    honest = await served.http.get(proxy, headers=shop)
    yield "an honest redirect is absolute", honest.headers.get("location") == f"{url}/issues/8"
