"""What is decided before a run starts: a request and what it continues become the plan of a run."""
