"""A tools/call request: the questions that its tool asks, their answers, and the tool's result.

`call` implements one HTTP request of a call. It also defines the interface of the presenters, which
show the questions. `verbs` has the methods with which a tool asks. `questions` asks a person: it
finds or starts the question, shows it, waits, and claims the outcome. `run` is the call's stored
record. `leases` has the outcomes that the request claimed, and records what its tool used.
`presenter` has the questions that a presenter shows together. `delivery` converts an answer for the
tool, and marks the answer as used when the client has received the tool's result. `clients` records
how each client handled questions. `running` has the tool bodies that may run longer than their
request.

The path of a question: `Verbs.ask` -> the question's place in its run -> `Questions.ask`: join or
start, show, wait, claim -> the tool's `await` returns -> `finish` stores the result -> `delivery`
records that the result arrived.

Guarantees: one outcome is used by one run. Work in `once` is not repeated. After an outcome is
claimed, a broken connection does not stop the body. A call of a refused caller stores nothing and
changes nothing.

This package knows presenters only through the protocol `Presenter` in `call`, and depends on no MCP
revision. An application's own code (`webapp.coroutines`) also makes calls, which have no tool.
"""
