"""The package as people install it: the wheel, what is in it, and a server that runs without the repository."""
