"""The token log: what requests in flight have generated, outside the engine."""
