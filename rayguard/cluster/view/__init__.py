"""What a cluster says of itself, asked by the commands."""
