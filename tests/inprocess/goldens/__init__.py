"""What is seen of the server, written down: a change of any of it shows as a change of a file in `files/`."""
