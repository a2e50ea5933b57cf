"""The inbox as it is kept: two rows of two owners, and every crash between them."""
