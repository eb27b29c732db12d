"""What `respsite chat` is made of: a connection, what of its events is shown, tools, and who types."""
