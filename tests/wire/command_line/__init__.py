"""The program `respsite`, run as people run it."""
