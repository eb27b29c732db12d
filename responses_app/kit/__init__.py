"""What every store is made of: rows of a project in tables, the threads that reach the database, duties, clocks."""
