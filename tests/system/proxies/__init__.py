"""Proxies in front of a server, each with the file of `deploy/`."""
