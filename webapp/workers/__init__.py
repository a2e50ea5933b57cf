"""Several processes serve one store, as workers of one socket or as instances behind a proxy.

`processes` finds out how many were asked for, and refuses what they could not share. `sessions`
sends each request of MCP 2025-11-25 to the process that has its session, by the end of the
session's id; `relay` passes it on over a socket of this user's alone, and `envelope` is what it
travels in. The one path: guard, rate limits and access token where the connection was accepted,
then the envelope, then the application of the other worker, which asks its own peer nothing.

Promised: it makes no difference to anybody's rights which worker a request comes to. What is of one
process, and why that is right, looked at one by one:

- sessions and their streams, and the letters to a client that is asked on one: routed, as above;
- waiters, running tools: each belongs to a request that is here; their wake, their outcome's take
  and lease, and `once` that takes longer than a moment are in the store. An identical call waits
  for a delivery of its own process alone: at another it may get a result again, never another one;
- caches (elicitations, owners' data keys, clients' deeds, registrations): the compare-and-set has
  the last word, and what others write is told by `Store.watch`. Which question is out at a client
  is known here alone: another process gives the link in a result, as for a client that is unknown;
- access tokens are renewed under a claim in the store; approvals, quotas, tries of a code, states
  of an authorization, used pairing addresses and sign-ins that ended are there;
- rate limits by address, and what an issuer said of a token: here, so N processes let N times as
  much through; nothing rests on the number;
- rules of a form are code of the process that asked: the page asks it through the store;
- readiness and draining: each tells its own.

Whoever has no store to share (memory) has one process.
"""
