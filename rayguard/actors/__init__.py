"""Ray actors: the guard decorator and the mixin for engine owners."""
