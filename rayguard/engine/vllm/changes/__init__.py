"""Changes of the weights that rayguard did not push: calls that may, and a look whether they did."""
