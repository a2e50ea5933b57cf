"""A kill -9 at each point of an elicitation's life, and what is left of it after a restart."""
