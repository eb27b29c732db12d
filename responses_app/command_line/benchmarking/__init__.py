"""What `respsite bench` is made of: requests that are measured, figures of them, and pictures of those."""
