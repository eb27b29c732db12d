"""Who is next: projects share the engine, its threads and the background."""
