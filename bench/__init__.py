"""What is measured: `make bench` (see `__main__`), and figures of the code itself: `house` counts what it is made of,
`ways` what a request goes through."""
