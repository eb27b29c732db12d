"""Files, and uploads that come in parts."""
