"""Hooks of frameworks: EasyR1 and verl, TRL and ms-swift. Importing this imports nothing of them."""
