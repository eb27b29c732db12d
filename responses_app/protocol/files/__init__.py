"""What clients keep here: files, uploads, vector stores and containers, as bodies and objects."""
