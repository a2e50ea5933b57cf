"""An approver's token for tool calls, used at the HTTP API: it must not decide or read anything."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.asked_programs import programs_on
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuing
from tests.support.serving import serving_at

FINDING = "XS12"
_APPROVERS = """
[approvers.finance]
subjects = ["erin"]
"""


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "elicit.toml"
        config.write_text(_APPROVERS, "utf-8")
        made: list[Issuing] = []

        def issuer(url: str) -> Issuing:
            made.append(Issuing(url))
            return made[0]

        async with serving_at(issuer) as url:
            about = {
                "ELICIT_CONFIG": str(config),
                "ELICIT_ISSUER": url,
                "ELICIT_ISSUER_CLIENT_ID": CLIENT_ID,
                "ELICIT_ISSUER_CLIENT_SECRET": CLIENT_SECRET,
            }
            async with programs_on("sqlite", Path(folder), **about) as served:
                shop = await served.key("shop")

                def token(use: str) -> str:
                    return made[0].token("erin", audience=f"{served.url}/{use}")

                for _ in range(times):
                    for method, path in (
                        ("GET", "/api/inbox"),
                        ("GET", "/api/questions"),
                        ("DELETE", "/api/approvals"),
                    ):
                        calls = {"authorization": f"Bearer {token('mcp')}"}
                        answer = await served.http.request(method, path, headers=calls)
                        yield f"{method} {path}: refused", answer.status_code == 403
                        own = {"authorization": f"Bearer {token('api/inbox')}"}
                        answer = await served.http.request(method, path, headers=own)
                        yield f"{method} {path}: by its own token", answer.status_code == 200
                    for use, status in (("mcp", 403), ("api", 201)):
                        acting = {**shop, "user-access-token": token(use)}
                        body = {"kind": "confirm", "message": "Sell the house?"}
                        answer = await served.http.post("/api/questions", json=body, headers=acting)
                        yield f"acting by one for {use}: {status}", answer.status_code == status
