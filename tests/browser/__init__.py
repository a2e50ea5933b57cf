"""A person's path in Chromium, from a waiting tool's link to the author's service and back."""
