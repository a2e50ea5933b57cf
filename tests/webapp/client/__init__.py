"""The client over the HTTP API."""
