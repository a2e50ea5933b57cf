"""`elicit demo`: tools that lead to a small service of their own, and a client that calls them.

`server` and `tools` are what is served, `client` calls each tool as a host would, `walker` is the
person when no browser is wanted, `paired` makes them known where the machine cannot tell its users.

It reaches the server over HTTP only, so that what it shows is what anybody gets.
"""
