"""Forms that tools send with the protocol itself, without elicit."""

import mcp_types as types


def size_form(state: str = "sizing", message: str = "Which size?") -> types.InputRequiredResult:
    question = types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=message, requested_schema={"type": "object", "properties": {}}
        )
    )
    return types.InputRequiredResult(input_requests={"size": question}, request_state=state)
