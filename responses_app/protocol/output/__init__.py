"""What the model says, as items with their events."""
