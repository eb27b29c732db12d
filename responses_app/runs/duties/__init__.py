"""What a worker does all the time: it says that it lives, and takes over from those that do not."""
