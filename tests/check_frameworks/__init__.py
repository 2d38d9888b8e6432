"""``make check-frameworks``: each framework's real package in an environment of its own."""
