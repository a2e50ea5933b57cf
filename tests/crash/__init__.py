"""A kill -9 at each point of an elicitation's life, and the state after a restart."""
