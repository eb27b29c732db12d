"""What operators see of a worker: numbers and log lines. Pure Python: one file knows Prometheus, none knows Django."""
