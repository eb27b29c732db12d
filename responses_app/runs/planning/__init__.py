"""A request and what it continues become the plan of a run."""
