"""What enters an engine's core: requests and calls, checked before anything is booked for them."""
