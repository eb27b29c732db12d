"""Programs of the model's that call tools."""
