"""The layer around the application: who may send what, how much of it, and what we may call.

`guard` checks Host, Origin and path for everything, `address` reads them, `root_path` says where
below its host we stand, whoever serves us (docs/hosts.md), `ending` hears that the process is to
end. `requests` reads cookies and queries in linear time,
`rate_limit` holds back addresses, `connection` tells whether a response arrived, `port` is who
serves the pages, `httptools_reader` the bounds of a head. `client` is the one way out, through the
guard against addresses inside (`trusted_hosts` are the operator's own).

Promised: every text of a stranger's has a bound before anything parses it; nothing of it is kept.
"""
