"""What the death of an actor costs, with its engine adopted and without."""
