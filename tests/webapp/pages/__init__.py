"""What people see, as HTML and in a browser."""
