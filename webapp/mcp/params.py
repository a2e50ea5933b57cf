"""Validation of the parameters that a client sends with a request.

Risks: a value of another type, a lone surrogate or a very long text reaches code that stores it.
Then no question can be asked, and the log fills with tracebacks. So this module checks the
parameters that this server reads. The library validates a tool's arguments against the tool's
schema, and text for a person is checked where it is shown.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError

NAME_CHARACTERS_AT_MOST: Final = 256


def must_be_fit(method: str, params: Mapping[str, Any] | None) -> None:
    """Check a request's parameters. Raises MCPError (-32602), without quoting the values."""
    params = params or {}
    about = params.get("_meta")
    infos: list[object] = [params.get("clientInfo")]
    if isinstance(about, Mapping):
        infos.append(cast("Mapping[str, object]", about).get(types.CLIENT_INFO_META_KEY))
    for info in infos:
        if not isinstance(info, Mapping):
            continue
        name = cast("Mapping[str, object]", info).get("name")
        if isinstance(name, str) and len(name) > NAME_CHARACTERS_AT_MOST:
            _refuse(
                f"The client's name (clientInfo) has more than {NAME_CHARACTERS_AT_MOST} "
                "characters."
            )
    if method == "tools/call":
        _must_be_a_call(params)


def _must_be_a_call(params: Mapping[str, Any]) -> None:
    name, state = params.get("name"), params.get("requestState")
    if (
        not isinstance(name, str)
        or len(name) > NAME_CHARACTERS_AT_MOST
        or not _is_valid_unicode(name)
    ):
        _refuse(
            f"name must be a tool's name: a string of at most {NAME_CHARACTERS_AT_MOST} characters."
        )
    if not isinstance(params.get("arguments"), Mapping | None):
        _refuse("arguments must be a JSON object.")
    if state is not None and not isinstance(state, str):
        _refuse("requestState must be a string: send it back unchanged.")
    responses = params.get("inputResponses")
    if responses is None:
        return
    if not isinstance(responses, Mapping):
        _refuse("inputResponses must be a JSON object.")
    for one in cast("Mapping[str, object]", responses).values():
        if not isinstance(one, Mapping):
            _refuse("Each response in inputResponses must be a JSON object.")


def _is_valid_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise MCPError(types.INVALID_PARAMS, why)
