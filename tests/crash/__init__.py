"""Tests that kill -9 the server at each point of an elicitation's life, and then restart it."""
