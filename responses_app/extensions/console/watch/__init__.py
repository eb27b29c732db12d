"""Watching a run: its timeline as a picture, its chain and forks as a tree, and two responses side by side."""
