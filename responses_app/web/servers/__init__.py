"""The servers that the application runs under: daphne and uvicorn."""
