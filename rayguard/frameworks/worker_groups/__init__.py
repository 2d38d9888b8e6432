"""Groups of workers that a framework made: all die and come back together. Importing this imports nothing."""
