"""The page of figures that `make bench-peers` prints, of made-up rounds."""

import re

from bench.peers_page import APIS, OWN, Measured, page
from responses_app.extensions.terminal.bench import Sample, figures_of

ENVIRONMENT = dict.fromkeys(("day", "respsite", "vLLM", "LiteLLM", "Python", "cores", "model", "tokens", "rounds"), "7")


def measured(*, first: float, cpu: float, error: str = "") -> Measured:
    """Return what a server did in one round of one stream: 101 tokens in 1 s behind the first, times in seconds."""
    kept = Measured()
    sample = Sample(seconds=first + 1, first=first, tokens=101, error=error)
    kept.add(figures_of(1, [sample], seconds=2.0), cpu=cpu)
    return kept


def test_the_page_has_each_figure_its_ratio_and_where_respsite_is_behind() -> None:
    servers = {
        OWN: measured(first=0.020, cpu=0.101),
        "respsite in front of vLLM": measured(first=0.030, cpu=0.0505),
        "LiteLLM in front of vLLM": measured(first=0.060, cpu=0.404),
    }
    text = page({(api, 1): servers for api in APIS}, ENVIRONMENT)
    assert [re.search(rf"^## {path}$", text, re.MULTILINE) is not None for path in APIS.values()] == [True, True]
    assert "| respsite in front of vLLM | 50.5 (1.00) | 30.0 ms (1.50) | - | 0.50 ms (0.50) |" in text
    behind = text.partition("## Where respsite is behind")[2].partition("\n## ")[0]
    told = re.findall(r"^- .*$", behind, re.MULTILINE)
    assert told == [
        f"- {path}, 1 stream, respsite in front of vLLM to {OWN}: first token 30.0 ms to 20.0 ms."
        for path in APIS.values()
    ]


def test_requests_that_failed_are_told_and_measured_as_nothing() -> None:
    servers = {OWN: measured(first=0.02, cpu=0.1), "LiteLLM in front of vLLM": measured(first=0.02, cpu=0.1, error="x")}
    text = page({("chat", 1): servers}, ENVIRONMENT)
    assert "| LiteLLM in front of vLLM | 0.00 (0.00) | - | - | - |" in text
    assert "Of the requests to LiteLLM in front of vLLM, 1 failed." in text
    assert "Nowhere by more than 5 %." in text
