"""Parts of every store and duty: rows of a project, the threads that reach the database, loops, clocks."""
