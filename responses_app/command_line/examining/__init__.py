"""What `respsite doctor` looks at. Each check returns what it found; `doctor` runs them beside each other."""
