"""One supervisor for each job: events in, decisions out, a story for each."""
