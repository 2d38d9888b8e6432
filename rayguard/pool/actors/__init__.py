"""The actors of a pool: how they are made, asked and watched."""
