"""What would fail, before step 0: the settings of a job against each other, its model and its machine."""
