"""llama.cpp's server as an engine."""
