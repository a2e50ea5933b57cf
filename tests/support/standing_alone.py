"""Servers that their own library serves."""

from typing import Any

from webapp.http.connection import ASGIApp


def application_of(server: Any, library: str, **options: bool) -> ASGIApp:
    if library == "fastmcp":
        application: ASGIApp = server.http_app(path="/mcp", **options)
    else:
        application = server.streamable_http_app(**options)
    return application
