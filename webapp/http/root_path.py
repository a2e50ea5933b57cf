"""The path below the host at which the application is mounted (ASGI's root_path).

Frameworks change `path` differently: Starlette leaves it unchanged and sets root_path, Litestar
strips the mount path and adds a slash. The path is therefore read from `raw_path`.

Risks: one path is read in two ways. A proxy that blocks /tools/mcp must not be bypassed by
/tools/tools/mcp. The module therefore never guesses from the path that a prefix was stripped. If
the ASGI server reports a prefix in root_path, the request paths must still contain that prefix at
their beginning. If a proxy strips a prefix, the operator sets the prefix in ELICIT_ROOT_PATH. The
full path must begin with the path of ELICIT_URL.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from webapp.http.exchange import Scope

_WELL_KNOWN = "/.well-known"
# Routing state of a framework: another framework inside would use it as its own.
_OF_HOSTS = frozenset(
    {
        "app_root_path",
        "endpoint",
        "litestar_app",
        "path_params",
        "path_template",
        "route_handler",
        "router",
        "_ls_connection_state",
    }
)
_UNTOLD = "If a proxy removes this prefix, set ELICIT_ROOT_PATH="
# Scope key of the root path, for an author's application that is mounted there.
ROOT_KEY = "elicit.root_path"


class Misplaced(Exception):
    """A request for a path outside of this application.

    The message is for the operator.

    `is_mounted`: the host itself reports another mount path.
    """

    def __init__(self, why: str, *, is_mounted: bool) -> None:
        super().__init__(why)
        self.is_mounted = is_mounted


def written_path(scope: Mapping[str, Any]) -> str:
    """Return the path as it was sent, as far as known."""
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.decode("latin-1")


def placed(scope: Scope, *, url: str, root_path: str, stripped: str) -> Scope:
    """Return the scope as if the application were at the root of its host.

    Raises Misplaced.

    `root_path` is the path of `url`, the public address. `stripped` is the prefix that a proxy
    removes.
    """
    raw: bytes | None = scope.get("raw_path")
    written = quote(scope["path"]) if raw is None else raw.decode("latin-1")
    reported: str = scope.get("app_root_path", scope.get("root_path", "")).rstrip("/")
    if reported and not (stripped or is_below(written, reported)):
        why = (
            f"The ASGI server reports root_path {reported}, but the request paths do not begin "
            f"with it. {_UNTOLD}{reported}."
        )
        raise Misplaced(why, is_mounted=False)
    full_path = stripped + written
    if full_path == root_path:
        path = "/"
    elif full_path.startswith(f"{root_path}/"):
        path = full_path.removeprefix(root_path)
    elif is_below(full_path, _WELL_KNOWN):
        path = full_path  # RFC 9728, 3.1: well-known path before the resource path
    else:
        raise Misplaced(_why(mount_of(scope), url=url, root_path=root_path), is_mounted=False)
    is_changed = scope.get("root_path") or unquote(written) != scope["path"]
    if is_changed and not root_path and (mount := mount_of(scope)):
        raise Misplaced(_why(mount, url=url, root_path=root_path), is_mounted=True)
    inside = {name: value for name, value in scope.items() if name not in _OF_HOSTS}
    inside |= {"path": unquote(path), "root_path": "", ROOT_KEY: root_path}
    if raw is not None:
        inside["raw_path"] = path.encode("latin-1")
    return inside


def rooted(scope: Scope) -> Scope:
    """Return the scope with root_path set, for an application that builds its own URLs."""
    root_path: str = scope.get(ROOT_KEY, "")
    if not root_path:
        return scope
    changed = {**scope, "root_path": root_path, "path": root_path + scope["path"]}
    if scope.get("raw_path") is not None:
        changed["raw_path"] = root_path.encode() + scope["raw_path"]
    return changed


def is_below(path: str, root: str) -> bool:
    """Return True if `path` equals `root` or is below it."""
    return path == root or path.startswith(f"{root}/")


def mount_of(scope: Mapping[str, Any]) -> str:
    """Return the mount path that the host reports by root_path or by a stripped path."""
    if scope.get("root_path"):
        return str(scope["root_path"]).rstrip("/")
    path, full_path = scope["path"].rstrip("/"), unquote(written_path(scope)).rstrip("/")
    is_off = path != full_path and full_path.endswith(path)
    return full_path.removesuffix(path).rstrip("/") if is_off else ""


def _why(mount: str, *, url: str, root_path: str) -> str:
    if not root_path:
        return (
            f"The application is served under {mount}, but ELICIT_URL ({url}) has no path. Set "
            f"ELICIT_URL to {url}{mount}."
        )
    if mount:
        return (
            f"The application is served under {mount}, but ELICIT_URL is {url}. Do one of these: "
            f"mount the application once, at {root_path}; set ELICIT_URL to the address that "
            "people open; or, if a proxy removes a part of the path, set uvicorn --root-path or "
            "ELICIT_ROOT_PATH to that part."
        )
    return (
        f"A request arrived without the path of ELICIT_URL ({url}). If a proxy removes "
        f"{root_path}, set uvicorn --root-path {root_path} or ELICIT_ROOT_PATH={root_path}. "
        "Otherwise configure the proxy to forward the full path (nginx: proxy_pass without a "
        "path)."
    )
