"""verl's rollouts: a request whose server died is made again on another. Importing this imports nothing."""
