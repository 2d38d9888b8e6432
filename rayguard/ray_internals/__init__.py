"""The only place that knows Ray's private names."""
