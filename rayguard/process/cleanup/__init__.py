"""What a dead process left behind: what is proved to be ours goes."""
