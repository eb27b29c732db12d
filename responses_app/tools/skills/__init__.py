"""Skills: bundles that clients send, and how they come into containers."""
