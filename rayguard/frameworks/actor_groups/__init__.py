"""Groups of actors that a framework calls by references: all die and come back together. Imports nothing."""
