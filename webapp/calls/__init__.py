"""One tools/call: the questions of its body, their answers, and what came of it.

The words: a *leg* is one HTTP request of a call, which `call` is, and `verbs` is what its tool asks
with; `used` is what the body has got so far; `questions` finds the elicitation of a question or
starts it; `run` is the call's record; `leases` are the outcomes that this leg has taken;
`presenter` is what a protocol revision does to show a link, and `clients` what each client made of
it; `running` are the bodies that may outlive a request.

The one path: `Verbs.ask` -> the question's place in its run -> join or start -> present -> wait ->
take -> the line of the tool returns -> `finish` keeps the result -> `delivery` notes that it
arrived.

Promised: one outcome moves one run; what `once` did is not done again; from the moment an outcome
is taken a broken line ends nothing; a caller that is refused reaches no side effect.

May be called by `webapp.mcp`, and by `webapp.coroutines`, whose calls have no tool; knows a
presenter as a protocol and no revision.
"""
