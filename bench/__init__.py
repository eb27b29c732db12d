"""Figures of the code itself: `house` counts what it is made of, `ways` what a request goes through."""
