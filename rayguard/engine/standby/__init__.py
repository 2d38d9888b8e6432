"""A warm engine that takes no traffic until the serving one dies."""
