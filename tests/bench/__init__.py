"""`make bench`: what the server costs, beside the least it could cost, measured in one run. See `__main__`."""
