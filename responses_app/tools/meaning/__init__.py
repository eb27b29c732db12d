"""File search by meaning: the vectors of queries and of chunks, made by an embedding model of the server."""
