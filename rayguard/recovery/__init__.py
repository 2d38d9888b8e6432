"""What to do about a fault: decisions, budgets, incidents and their journal."""
