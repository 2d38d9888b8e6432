"""A folder for ``PYTHONPATH``, and nothing else: what it is for stands in its one file."""
