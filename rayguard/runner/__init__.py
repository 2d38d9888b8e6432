"""``rayguard run``: a command watched, diagnosed when it fails, and started again where that helps."""
