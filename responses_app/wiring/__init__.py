"""Settings become objects: what one process serves with, how it starts and how it stops."""
