"""What documents say, read by processes of their own."""
