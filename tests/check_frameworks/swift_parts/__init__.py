"""ms-swift as commands of its own, on the CPU: a training, and a server."""
