"""The client: asks questions from any Python process, over the HTTP API of a server.

An agent loop, a job or a notebook opens `Elicit` for one run: a named unit of work for one user.
Inside the block, `await elicit.oauth(...)` sends a request to the server, shows a link, and waits.
`Elicit` is an Asker, like the asker of a tool call.

Risks: either side dies, and a person is asked or pays twice. So a question has a place in its run:
its kind, its content, and the number of equal questions before it. The server stores the answers.
If the program starts again under the same name and asks the same questions, it gets the same
answers. At the end of the block, one request ends the run. Only this request uses the answers up
and frees the name for another run. If the program dies before that request, it repeats its work
from the start. Put work that must not be repeated in `once`, whose result the server stores under
the run.

`elicit` has Elicit. `requests` sends HTTP requests and retries them. `answers` builds accounts and
receipts, which call their providers through the server, so no access token has to leave the server.

The package imports `flows`, httpx and three small modules of `webapp`, which a test checks.
`deadline` reads the monotonic clock. `printing` writes the link to the terminal. `calls.unasked`
lets the event loop start the tasks of questions before it reports the questions as not asked.
"""

from webapp.client.elicit import Elicit
from webapp.client.requests import (
    ListedQuestion,
    ServerRefused,
    ServerUnreachable,
    list_questions,
)

__all__ = ["Elicit", "ListedQuestion", "ServerRefused", "ServerUnreachable", "list_questions"]
