"""flows/kinds."""
