"""The machine of a response, its parts, and the inputs that it takes."""
