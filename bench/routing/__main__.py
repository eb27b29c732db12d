"""`python -m bench.routing`: print the tables of `docs/explanation/routing.md` and of `docs/how-to/tuning-vllm.md`."""

from bench.routing.tables import page

if __name__ == "__main__":
    print(page())
