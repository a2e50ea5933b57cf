"""An identity check by a vendor, whose signed webhook completes the question.

elicit serve kyc:mcp
"""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from flows import complete_elicitation, elicit

mcp = MCPServer("kyc")
VENDOR = "https://verifo.example"
SECRET = os.environ.get("VERIFO_SECRET", "only-for-a-test-of-this-example").encode()
VALID_FOR_SECONDS = 300
depots: list[str] = []  # use a table of your own database


class Report(BaseModel):
    """The vendor's report. `case` is the id that we gave to the check."""

    case: str
    status: Literal["verified", "rejected"]


def signed(body: bytes, *, at: int | None = None) -> dict[str, str]:
    """Return the headers with which the vendor sends a report."""
    moment = str(int(time.time()) if at is None else at)
    mac = hmac.digest(SECRET, f"{moment}.".encode() + body, hashlib.sha256)
    return {"verifo-time": moment, "verifo-signature": mac.hex()}


def is_genuine(body: bytes, headers: Mapping[str, str]) -> bool:
    """Return True if the vendor signed this body in the last five minutes."""
    moment, given = headers.get("verifo-time", ""), headers.get("verifo-signature", "")
    if not (moment.isascii() and moment.isdecimal()) or len(moment) > 12:
        return False
    expected = signed(body, at=int(moment))["verifo-signature"]
    is_recent = abs(time.time() - int(moment)) <= VALID_FOR_SECONDS
    return is_recent and hmac.compare_digest(given.encode(), expected.encode())


def new_case() -> str:
    return f"case-{secrets.token_urlsafe(16)}"


@mcp.tool()
async def open_depot() -> str:
    """Open a depot for the person, after Verifo has checked who they are."""
    case = await elicit.once("case", new_case)
    report = await elicit.url(
        "Verifo checks your identity before the depot is opened.",
        f"{VENDOR}/start?case={case}",
        elicitation_id=case,
        timeout=timedelta(hours=1),
    )
    if report["status"] != "verified":
        return "Verifo could not verify the person's identity, so no depot was opened."
    await elicit.once("depot", lambda: depots.append(case))
    return "The depot is open."


async def receive_report(request: Request) -> PlainTextResponse:
    """Complete the check that the vendor reports. The vendor repeats a report until a 200."""
    body = await request.body()
    if not is_genuine(body, request.headers):
        return PlainTextResponse("forged or too old", status_code=401)
    try:
        report = Report.model_validate_json(body)
    except ValidationError:
        return PlainTextResponse("not a report", status_code=400)
    done = await complete_elicitation(report.case, {"status": report.status})
    return PlainTextResponse(done)  # a repeated report is already_settled and changes nothing


mcp.custom_route("/verifo", methods=["POST"])(receive_report)
