"""The flight recorder: the last minute of a process, readable after SIGKILL."""
