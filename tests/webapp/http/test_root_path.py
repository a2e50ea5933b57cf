"""The path inside the application, computed from the path that the host or proxy reports."""

from typing import Any

import pytest
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from webapp.http.address import Misplaced, placed, rooted
from webapp.http.exchange import Message, Receive, Scope, Send

HERE = "https://example.com"


def scope(path: str, *, raw: str | None = "", **changes: Any) -> Scope:
    """Return a request scope.

    `raw` is the received path, or None if the host does not report it.
    """
    written = {} if raw is None else {"raw_path": (raw or path).encode()}
    return {"type": "http", "path": path, "root_path": "", "headers": [], **written, **changes}


def inside(given: Scope, *, root_path: str = "/tools", taken: str = "") -> str:
    found = placed(given, url=HERE + root_path, root_path=root_path, stripped=taken)
    assert found["root_path"] == ""
    assert found.get("raw_path", found["path"].encode()).decode() == found["path"]
    return str(found["path"])


def test_proxy_which_preserves_path_needs_no_setting() -> None:
    for path, path_inside in (
        ("/tools", "/"),
        ("/tools/", "/"),
        ("/tools/mcp", "/mcp"),
        ("/tools/tools/mcp", "/tools/mcp"),
    ):
        assert inside(scope(path)) == path_inside
        assert inside(scope(path, raw=None)) == path_inside


def test_path_prefix_stripped_by_proxy_is_known_from_host_or_setting() -> None:
    # uvicorn puts its --root-path in front of the received path.
    assert inside(scope("/tools/mcp", root_path="/tools")) == "/mcp"
    assert inside(scope("/mcp"), taken="/tools") == "/mcp"
    assert inside(scope("/mcp", root_path="/tools"), taken="/tools") == "/mcp"
    # The proxy strips a part of the path, /a, and the app is mounted at /b.
    assert inside(scope("/b/mcp"), root_path="/a/b", taken="/a") == "/mcp"
    reported = {"app_root_path": "/a", "root_path": "/a/b"}
    assert inside(scope("/a/b/mcp", **reported), root_path="/a/b") == "/mcp"
    assert inside(scope("/b/mcp", **reported), root_path="/a/b", taken="/a") == "/mcp"


def test_server_with_root_path_but_stripped_paths_needs_setting() -> None:
    # hypercorn and granian do not add root_path to the path. If the server guessed that a proxy had
    # stripped the prefix, the public path /tools/tools/mcp would be a second name of /mcp.
    reported = {"app_root_path": "/a", "root_path": "/a/b"}
    for given, root_path, setting in (
        (scope("/mcp", root_path="/tools"), "/tools", "ELICIT_ROOT_PATH=/tools"),
        (scope("/b/mcp", **reported), "/a/b", "ELICIT_ROOT_PATH=/a"),
    ):
        with pytest.raises(Misplaced, match=rf"{setting}\."):
            inside(given, root_path=root_path)
    given = scope("/tools/mcp", root_path="/tools")
    assert inside(given, taken="/tools") == "/tools/mcp"


def test_path_without_expected_prefix_names_setting() -> None:
    for path in ("/mcp", "/toolsmcp", "/tool", "/other/tools/mcp", "/"):
        with pytest.raises(Misplaced, match=r"ELICIT_ROOT_PATH=/tools") as refused:
            inside(scope(path))
        assert "uvicorn --root-path /tools" in str(refused.value)
    # The proxy has stripped /tools already, so another /tools at the start of the path stays.
    assert inside(scope("/tools/mcp"), taken="/tools") == "/tools/mcp"


def test_mount_missing_in_public_url_names_url_to_set() -> None:
    for given in (
        scope("/b/mcp", root_path="/b", app_root_path=""),
        scope("/mcp/", raw="/b/mcp"),  # as Litestar mounts it
    ):
        with pytest.raises(Misplaced, match=r"Set ELICIT_URL to https://example.com/b\.") as error:
            inside(given, root_path="")
        assert error.value.is_mounted


def test_second_mount_is_refused() -> None:
    with pytest.raises(Misplaced, match=r"under /b.* mount the application once, at /tools"):
        inside(scope("/b/mcp", root_path="/b", app_root_path=""))


def test_path_after_well_known_prefix_is_passed_on() -> None:
    path = "/.well-known/oauth-protected-resource/tools/mcp"
    assert inside(scope(path)) == path


def test_percent_encoded_path_is_decoded_once() -> None:
    given = scope("/tools/x y%41", raw="/tools/x%20y%2541")
    found = placed(given, url=HERE, root_path="/tools", stripped="")
    assert (found["path"], found["raw_path"]) == ("/x y%41", b"/x%20y%2541")


def test_custom_application_receives_root_path() -> None:
    given = placed(scope("/tools/mine"), url=HERE, root_path="/tools", stripped="")
    whole = rooted(given)
    assert (whole["root_path"], whole["path"]) == ("/tools", "/tools/mine")
    assert whole["raw_path"] == b"/tools/mine"
    plain = placed(scope("/mine"), url=HERE, root_path="", stripped="")
    assert rooted(plain) is plain


@pytest.mark.parametrize("framework", ["starlette", "litestar"])
@pytest.mark.parametrize("path", ["/tools/e/token", "/tools/mcp", "/tools/"])
async def test_framework_mounts_leave_path_and_scope_intact(framework: str, path: str) -> None:
    seen = list[Scope]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    host: Any
    if framework == "starlette":
        host = Starlette(routes=[Mount("/tools", app)])
    else:
        mounted = asgi("/tools", is_mount=True, copy_scope=True)(app)
        host = Litestar([mounted], openapi_config=None, logging_config=None)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    whole = scope(path, method="GET", query_string=b"", scheme="http", server=("h", 1), state={})
    await host({**whole, "http_version": "1.1", "asgi": {"version": "3.0"}}, receive, send)
    (given,) = seen
    found = placed(given, url=HERE, root_path="/tools", stripped="")
    assert found["path"] == path.removeprefix("/tools")
    assert not found.keys() & {"route_handler", "endpoint", "path_params", "_ls_connection_state"}


def test_mount_at_root_is_ignored() -> None:
    # Litestar removes the leading slash there.
    assert inside(scope("e/x", raw="/e/x"), root_path="") == "/e/x"
