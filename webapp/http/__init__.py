"""The HTTP layer around the application: request checks, size limits and outbound calls.

Every request passes the `edge`, which reads it once into an `exchange` and passes it to the
application that the first segment of its path names. Before that, its `Guard` checks Host, Origin
and path: `address` parses them, and finds the application's path below its host
(docs/how-to/asgi.md). The exchange also owns the response: it changes the headers, and reports
whether the response was delivered. `parts` gives our routes the service. `ending` reports that
the process is about to end. `browser` reads cookies and queries in linear time. `rate_limit` limits
requests by address, and `port` decides which process serves the pages. `client` is the only
outbound HTTP client; it blocks internal addresses, except the operator's trusted hosts.

Guarantee: untrusted text has a size limit before it is parsed, and none of it is stored.
"""
