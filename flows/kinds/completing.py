"""The completion of a question by the author's own service or route."""

from collections.abc import Mapping
from datetime import timedelta

from flows.elicitation.states import Completion, Json
from flows.errors import InvalidQuestion
from flows.question import (
    DEFAULT_TIMEOUT,
    ReturningRequest,
    current_asker,
    must_be_elicitation_id,
    must_be_timeout,
    verb,
)


@verb
def token(elicitation_id: str, *, timeout: timedelta = DEFAULT_TIMEOUT) -> str:
    """Return an encrypted token of an elicitation, to send through a service of your own.

    A callback that receives the token reads it with `read_token`. Only this server can create, read
    or change a token. The token identifies the elicitation, not the sender. To identify a person's
    browser, use the link's `return_token`.

    Args:
        elicitation_id: The id of the elicitation: 1 to 128 letters, digits or `. _ ~ -`.
        timeout: How long the token is valid.

    Returns:
        The token.

    Raises:
        InvalidQuestion: The id or the timeout is not valid.
        NoAsker: No tool call and no `asking` block is active.
    """
    must_be_elicitation_id(elicitation_id)
    must_be_timeout(timeout)
    return current_asker().token(elicitation_id, timeout=timeout)


@verb
def read_token(text: str) -> str:
    """Return the elicitation id in a `token`, for `complete_elicitation`.

    Args:
        text: The token.

    Returns:
        The id of the elicitation.

    Raises:
        InvalidToken: The text is damaged, forged, expired, or another kind of token.
        NoAsker: No tool call, no `asking` block and no `completing` block is active.
    """
    return current_asker().read_token(text)


@verb
async def complete_elicitation(
    elicitation: str | ReturningRequest,
    content: Mapping[str, Json] | None = None,
    *,
    owner: str | None = None,
    program: str | None = None,
    tool: str | None = None,
) -> Completion:
    """Complete an elicitation, so that the waiting tool continues.

    Trusted code in any process on the same store can pass the elicitation's id, to complete a
    question of the kind `url`. A form can be completed too, but only by an `elicitation_id` that
    you chose for it. Such an id belongs to the tool, block or API program that chose it.

    Args:
        elicitation: The id. From a public route, the request itself: it must carry the link's
            return token (the query parameter `elicitation`) and come from the browser that pressed
            Continue.
        content: The answer: a JSON object.
        owner: The person's `link.owner`, if several people have a question with this id.
        program: The API program that asked. The id is then looked up among this program's
            questions. Without `program`, the id is looked up among the questions of your server's
            tools and blocks.
        tool: The tool that asked, if several tools have a question with this id. For an `asking`
            block, pass "the application".

    Returns:
        The result: the elicitation is completed, or the reason why nothing changed.

    Raises:
        InvalidQuestion: Both `program` and `tool` are set, or `elicitation` is neither an id nor a
            request. In a tool, the error is InvalidUse and names the line.
        InvalidAnswer: The content does not match the schema of the form.
        OwnerNeeded: Several people or tools have such a question, and nothing was completed.
        NoAsker: No tool call, no `asking` block and no `completing` block is active.
    """
    if not isinstance(elicitation, str) and not hasattr(elicitation, "query_params"):
        raise InvalidQuestion(
            "complete_elicitation needs the id of an elicitation, or the request of your route, "
            f"not {type(elicitation).__name__}."
        )
    if isinstance(elicitation, str):
        if program is not None and tool is not None:
            raise InvalidQuestion("Pass either program= or tool=, not both.")
        return await current_asker().complete(
            elicitation, content or {}, owner=owner, program=program, tool=tool
        )
    return await current_asker().complete_return(elicitation, content or {})
