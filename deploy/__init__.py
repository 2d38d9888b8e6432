"""What runs a cluster with rayguard, and (``generate``) what writes the generated part of it."""
