"""The events and frames that clients see, and how dialects word them."""
