"""What the search of the built pages knows beside their text: words that people type, and pages that it leaves out.

Sphinx finds a page only if it has every word of a question. So a page is given the words under which people look for
what it tells in other words. They are written into the page's head as its keywords.
"""

from collections.abc import Mapping

# Lists that have every word of the project: they would come first for any question.
LEFT_OUT = ("reference/modules", "reference/conformance", "how-to/index", "explanation/index", "reference/index")
KEYWORDS: Mapping[str, str] = {
    "how-to/clients/codex": "how to use with codex openai cli setup config.toml configure",
    "how-to/clients/claude-code": "claude code set up setup configure anthropic how to use with",
    "how-to/clients/coding-agents": "how to use with codex claude code setup configure agent",
    "how-to/backup": "move sqlite to postgres database migrate restore dump",
    "how-to/command-line": "move sqlite to postgres database export import",
    "how-to/api-keys": "401 unauthorized authentication invalid api key",
    "how-to/troubleshooting": "401 403 404 429 503 too many requests unauthorized cuda out of gpu memory oom help",
    "how-to/rate-limits": "429 too many requests quota throttle tokens per minute",
    "how-to/background": "background mode async long running poll",
    "how-to/vision": "vision image input multimodal picture photo see",
    "how-to/forgetting": "gdpr erase right to be forgotten privacy delete user data",
    "explanation/takeover": "worker crash failover high availability kill restart",
    "explanation/workers": "worker crash failover high availability processes",
    "how-to/conversations": "context length exceeded context window compaction history memory session thread",
    "how-to/websocket": "cors browser fetch reconnect realtime",
    "how-to/several-models": "multiple models aliases",
    "how-to/laptop": "ollama llama.cpp gguf mac local laptop",
    "how-to/function-calling": "function calling tool use tools tool_choice required",
    "how-to/structured-output": "json mode json schema strict pydantic",
    "how-to/file-search": "rag retrieval vector store embeddings knowledge",
    "how-to/watching": "monitoring metrics prometheus grafana dashboard opentelemetry tracing logs json alerts",
}


def head_of(page: str) -> str:
    """Return the front matter of a page, "" for one without."""
    lines = []
    if page in LEFT_OUT:
        lines.append("nosearch: true")
    if page in KEYWORDS:
        words = ", ".join(KEYWORDS[page].split())  # what stands between commas is one word to Sphinx
        lines += ["myst:", "  html_meta:", f'    "keywords lang=en": "{words}"']
    return "\n".join(["---", *lines, "---", "", ""]) if lines else ""
