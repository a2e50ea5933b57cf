"""The HTTP layer around the application: who may send requests, how large, and outbound calls.

Every request passes the `edge`, which reads it once into an `exchange` and passes it to the
application that the first segment of its path names. Before that, the `guard` checks Host, Origin
and path: `address` parses them, and `root_path` finds the application's path below its host
(docs/how-to/asgi.md). The exchange also owns the response: it changes the headers, and reports
whether the response was delivered (`connection`). `parts` lets our own applications answer.
`ending` reports that the process is about to end. `requests` reads cookies and queries in linear
time. `rate_limit` limits requests by address, `port` decides which process serves the pages, and
`httptools_reader` limits the size of a request head. `client` is the only outbound HTTP client; it
blocks internal addresses, except the operator's `trusted_hosts`.

Guarantee: untrusted text has a size limit before it is parsed, and none of it is stored.
"""
