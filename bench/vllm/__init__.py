"""`make bench-vllm`: the server on a real vLLM beside vLLM's own `/v1/responses`, in one run. See `__main__`."""
