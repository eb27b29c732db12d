"""What several commands need: the server that they call, and the terminal."""
