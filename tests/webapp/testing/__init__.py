"""The kit for authors' tests, as an author uses it."""
