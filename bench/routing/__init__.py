"""A simulator of agents on several replicas: what each way to route them finds in the prefix caches.

Pure and deterministic: time is simulated, chance has a seed, and the choice that is judged is the pool's own
(`engine.backends.vllm.pool.ReplicaChoice`). `.venv/bin/python -m bench.routing` prints the tables of
`docs/explanation/routing.md`; `.venv/bin/python -m bench routing` has the row.
"""
