"""The kit for authors' tests: a person who is asked by a tool, and does something about it.

`elicit_person(server)` serves an author's server to one client in the same process, with all that
stands behind a question for real: the store (in memory), the pages, the provider and the checkout
(the sandbox), signed webhooks, and a clock that the test moves. No socket is opened, nothing
sleeps, nothing is patched, and when it is left the server is as it was.

The one path. A test says what the person will do (`person.pays()`), in the order in which they will
be asked, and calls a tool. The client shows the link, and the person acts on it at the pages as a
browser without JavaScript would; then the tool goes on. A question that nobody was told to answer
ends at once, and fails the test with the words to write (`UnexpectedQuestion`); so does what was
told and never asked (`NeverAsked`), and a question that a client of the test's own leaves open
(`StillOpen`).

`in_process` puts it all up, `person` has what a test says and sees, `acts` what a person does at
the pages, `told` the words for what was asked and heard, `webhooks` the payment provider's side.

May be called by tests, those of pytest through the fixture of the same name (elicit_url_pytest.py
at the top) and others by import; nothing that serves imports it.
"""

from webapp.testing.in_process import elicit_person
from webapp.testing.person import AskedPerson
from webapp.testing.told import (
    Heard,
    NeverAsked,
    OutsideReached,
    StillOpen,
    Told,
    UnexpectedForm,
    UnexpectedQuestion,
)

__all__ = [
    "AskedPerson",
    "Heard",
    "NeverAsked",
    "OutsideReached",
    "StillOpen",
    "Told",
    "UnexpectedForm",
    "UnexpectedQuestion",
    "elicit_person",
]
