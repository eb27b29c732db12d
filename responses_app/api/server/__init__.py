"""What is asked of the server itself: health, metrics, and its documentation."""
