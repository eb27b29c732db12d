"""Skills: their bundles, and their way into containers."""
