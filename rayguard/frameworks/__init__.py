"""Hooks of frameworks that train without Ray: TRL and ms-swift. Importing this imports nothing of them."""
