"""Several processes that serve one store, as workers of one socket or instances behind a proxy.

`sessions` routes each request of MCP 2025-11-25 to the process that owns its session. The session
id ends with the name of that process. `sessions` also detects how many processes were configured,
and rejects setups that cannot share state. `relay` passes the request on over a Unix socket of this
user, sealed in the format of `envelope`. The worker that accepted the connection applies the guard
and the rate limits, and checks the access token. Then the envelope goes to the application of the
other worker, which uses the peer in the envelope and not the peer of the Unix socket.

Guarantee: a caller's rights do not depend on which worker receives the request. The state of a
single process, and why that is safe:

- Sessions, their streams, and messages to a client on a stream: routed as above.
- Waiters and running tools: each belongs to a request of this process. Wake-ups, the claim on an
  outcome and its lease, and a long `once` are in the store. An identical call waits for a delivery
  only in the same process. In another process, it may get the same result a second time, but never
  a different result.
- Caches (elicitations, owners' data keys, client behaviour, registrations): every write is checked
  by compare-and-set, and `Store.watch` reports the writes of other processes. Only this process
  knows which question a client is showing at the moment. Another process returns the link in the
  result, as for an unknown client.
- Token renewals (under a claim), approvals, quotas, attempts to enter a code, authorization states,
  used pairing addresses and ended sign-ins: in the store.
- Rate limits by address, and cached answers of a token issuer: each process has its own, so N
  processes allow N times as many requests. The security does not depend on this number.
- Validation rules of a form: code of the process that asked. The page asks that process through the
  store.
- Readiness and draining: reported by each process for itself.

A store that cannot be shared (memory) allows only one process.
"""
