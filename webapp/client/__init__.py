"""The client: the verbs in any Python process, over the HTTP API of a server.

An agent loop, a job or a notebook opens `Elicit` for one run: a piece of work for one user, which
has a name. Within it `await elicit.oauth(...)` is a request to the server, a link that the program
shows, and a wait. It is an Asker, as a tool's call is one.

What could go wrong: either side dies, and somebody is asked or pays twice. So a question has its
place in the run (its kind, what it asks, how many equal ones came before), and the server has the
answers: the same program, started again under the same name, asks the same and is told what is
there. The server keeps all of it until the run is ended, which is one request, at the end of the
block and not before: until then nothing is used up, and from then on the name is free for another
wish. A program that dies between its last line and that request goes through its lines once more;
what must not be done again stands in `once`, whose result the server keeps under the run.

`elicit` has Elicit, `requests` sends what it asks and tries again where nobody answers, `answers`
makes accounts and receipts of what is told, which reach their providers through the server: no key
of an account's has to leave it.

Imports `flows`, httpx and what is light: no framework, no protocol library, no store. A test holds
it to that. Stands after `calls`, of which it takes the link and the count of what was not asked.
"""

from webapp.client.elicit import Elicit
from webapp.client.requests import (
    ListedQuestion,
    ServerRefused,
    ServerUnreachable,
    list_questions,
)

__all__ = ["Elicit", "ListedQuestion", "ServerRefused", "ServerUnreachable", "list_questions"]
