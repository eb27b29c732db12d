"""The resources of the API, a folder each: what is kept, what requests and answers have, and what works on it."""
