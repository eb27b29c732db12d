"""The log of a run, its journal of events, and what reads them."""
