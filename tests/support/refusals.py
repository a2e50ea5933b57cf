"""Replies of token endpoints that refuse to refresh a token, by vendor."""

from collections.abc import Mapping
from typing import Any

import httpx


def _json(status: int, /, **members: Any) -> httpx.Response:
    return httpx.Response(status, json=members)


# The refresh token has expired, but the reply has no standard error code. Most bodies are
# from the vendors' own pages. Those of X, Reddit, Zoho and Meta are from other people's reports.
ENDED: Mapping[str, httpx.Response] = {
    "Atlassian": _json(
        403, error="unauthorized_client", error_description="refresh_token is invalid"
    ),
    "HubSpot": _json(400, status="BAD_REFRESH_TOKEN", message="missing or unknown refresh token"),
    "HubSpot, newer": _json(400, category="VALIDATION_ERROR", correlationId="a1", message="no"),
    "X": _json(
        400, error="invalid_request", error_description="Value passed for the token was invalid."
    ),
    "Reddit": _json(400, message="Bad Request", error=400),
    "Zoho": _json(200, error="invalid_code"),
    "Zoom": _json(400, reason="Invalid Token!", error="invalid_request"),
    "Meta": _json(400, error={"message": "expired", "type": "OAuthException", "code": 190}),
    "Strava": _json(400, message="Bad Request", errors=[{"field": "refresh_token"}]),
    "ServiceNow": _json(401, error="access_denied"),
    "WeChat": _json(200, errcode=40030, errmsg="invalid refresh_token"),
    "200 with ok: false": _json(200, ok=False),
    "revoked": _json(403, error="unauthorized_client", error_description="The user revoked access"),
    "grant expired": _json(
        400, error="unauthorized_client", error_description="The grant has expired"
    ),
    "grant type not allowed": _json(
        400,
        error="unauthorized_client",
        error_description="The client is not authorized to use the grant type refresh_token.",
    ),
    "500 with invalid_grant": _json(500, error="invalid_grant"),
    "200 with an empty object": _json(200),
    "access token is null": _json(200, access_token=None, message="refresh token expired"),
    "access token with a space": _json(200, access_token="two words"),
    "403 with Retry-After": httpx.Response(403, headers={"retry-after": "60"}),
    "a plain 401": httpx.Response(401),
    "a plain 403": httpx.Response(403, text="Forbidden"),
}
# Only the operator can fix the cause of these refusals.
OPERATORS: Mapping[str, httpx.Response] = {
    "a wrong secret": _json(401, error="invalid_client"),
    "a wrong secret, 400": _json(400, error="invalid_client", error_description="Client auth"),
    "a wrong secret, 200": _json(200, error="invalid_client"),
    "unsupported_grant_type": _json(400, error="unsupported_grant_type"),
}
# Neither a refusal nor a token: a page of the provider, or of a server in front of it.
PAGES: Mapping[str, httpx.Response] = {
    "redirect": httpx.Response(302, headers={"location": "https://portal.example"}),
    "HTML page": httpx.Response(200, html="<html>error=invalid_grant</html>"),
    "body that is not UTF-8": httpx.Response(200, content=b"\xff"),
    "204": httpx.Response(204),
}
# Temporary failures of the network or the provider.
PASSING: Mapping[str, httpx.Response] = {
    "500": httpx.Response(500),
    "503 with invalid_grant": _json(503, error="invalid_grant"),
    "502": httpx.Response(502, html="<h1>Bad Gateway</h1>"),
    "429": _json(429, error="invalid_grant"),
    "429 with Retry-After": httpx.Response(429, headers={"retry-after": "60"}),
    "407": httpx.Response(407, html="<h1>Proxy Authentication Required</h1>"),
    "408": httpx.Response(408),
    "temporarily unavailable": _json(400, error="temporarily_unavailable"),
    "server error": _json(400, error="server_error"),
}
