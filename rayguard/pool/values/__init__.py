"""What a pool is asked and what it answers: plain values."""
