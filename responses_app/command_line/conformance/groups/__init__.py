"""The checks, in groups: each is a function, and its docstring is the rule."""
