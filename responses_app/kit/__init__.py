"""What resources are made of: mechanisms that each of them would otherwise have of its own."""
