"""The test kit for tool authors: a simulated person who answers the questions of a tool.

`elicit_person(server)` serves an author's server to one client in the same process. Everything
behind a question is real: the store (in memory), the pages, the provider and the checkout (the
sandbox), signed webhooks, and a clock that the test moves. The kit opens no socket, does not sleep
and patches nothing. When the block ends, the server is as it was before.

A test says what the person will do (`person.pays()`), in the order of the questions, and then calls
a tool. The client shows the link. The person uses the pages like a browser without JavaScript,
and the tool continues. Three mistakes fail the test: a question that the test did not expect
(`UnexpectedQuestion`, whose message says what to write), an action that no tool asked for
(`NeverAsked`), and a question that the test's own client leaves open (`StillOpen`).

The modules:

- `in_process` sets everything up.
- `_application` has the served application, which can restart, and its clients.
- `planned` has the methods that plan a person's actions, and `_acts` does them on the pages.
- `person` has the methods that a test calls, and the results that it reads.
- `received` has the values and errors that a test reads.
- `webhooks` has the payment provider's webhooks.

For tests only: no module that serves requests imports this package. In pytest, use the fixture
`elicit_person` (from elicit_url_pytest.py in the top folder), which has the type `ElicitPerson`.
With other test runners, import the function.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias
from warnings import warn

from webapp.calls.replay import ReplayedCall, ReplayedLines
from webapp.testing.in_process import elicit_person
from webapp.testing.person import AskedPerson
from webapp.testing.received import (
    NeverAsked,
    OutsideReached,
    ReceivedQuestion,
    ReceivedResult,
    StillOpen,
    UnexpectedForm,
    UnexpectedQuestion,
)

ElicitPerson: TypeAlias = Callable[..., AbstractAsyncContextManager[AskedPerson]]

__all__ = [
    "AskedPerson",
    "ElicitPerson",
    "NeverAsked",
    "OutsideReached",
    "ReceivedQuestion",
    "ReceivedResult",
    "ReplayedCall",
    "ReplayedLines",
    "StillOpen",
    "UnexpectedForm",
    "UnexpectedQuestion",
    "elicit_person",
]

if not TYPE_CHECKING:  # with `__getattr__`, a type checker accepts every name

    def __getattr__(name: str) -> object:
        plain = {"Told": ReceivedQuestion, "Heard": ReceivedResult}.get(name)
        if plain is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn(f"{name} is now {plain.__name__}.", DeprecationWarning, stacklevel=2)
        return plain
