"""flows/schema."""
