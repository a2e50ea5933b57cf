"""The demo: tools that lead to a small service of their own, and a client that calls them."""
