"""What the sandbox's payment providers do alike; nothing here is any vendor's own."""
