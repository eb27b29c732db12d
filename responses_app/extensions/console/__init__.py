"""The console: pages of the admin, and pages that watch responses and roll-outs."""
