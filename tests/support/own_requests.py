"""Forms that tools ask for by the protocol itself."""

import mcp_types as types


def size_form(state: str = "sizing") -> types.InputRequiredResult:
    question = types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message="Which size?", requested_schema={"type": "object", "properties": {}}
        )
    )
    return types.InputRequiredResult(input_requests={"size": question}, request_state=state)
