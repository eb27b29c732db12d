"""The tools that a server runs, as requests declare them: validated, and in the form in which they are echoed.

What a request says of credentials is never echoed, and so never kept: it is read apart (`private_fields`). Of the URL
of an MCP server the query and the user are credentials, too.

`FoundFiles`: what of the results of `file_search` messages can cite.

    The shell is bone【0:2†turtles.pdf】.   ->   The shell is bone.   with a file_citation at its index

The first number counts the searches of a chain, the second the results of one. What was found is the tool's state, so
citations hold along a chain: `{"first", "found": [[[file id, name], …], …]}`, the newest last.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, StringConstraints

from engine import orjson
from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, unsupported_parameter
from responses_app.protocol.fields import ClientModel, Refused, ToolModel, validate
from responses_app.protocol.files.containers import echoed_interpreter, echoed_shell, secret_values
from responses_app.protocol.files.searches import DEFAULT_RESULTS, MAX_RESULTS, Filter, RankingOptions
from responses_app.protocol.items.calls import is_hosted_shell
from responses_app.protocol.items.client_tools import by_model, by_programs, is_search_of_server
from responses_app.protocol.items.offers import PROGRAM, PROGRAMS, SEARCH_NAMESPACE, SHELL

MAX_DOMAINS = 100
_MAX_PLACE = 200  # characters
MAX_WEIGHT = 100.0  # of words, or of meanings

_Place = Annotated[str, StringConstraints(max_length=_MAX_PLACE)]


class _Filters(ClientModel):
    """Which pages may be found and opened."""

    allowed_domains: list[str] | None = Field(default=None, min_length=1, max_length=MAX_DOMAINS)
    blocked_domains: list[str] | None = Field(default=None, max_length=MAX_DOMAINS)

    own: ClassVar = ("blocked_domains",)  # as Anthropic's API has it


class _UserLocation(ClientModel):
    """About where the user is."""

    type: Literal["approximate"] | None = None
    city: _Place | None = None
    region: _Place | None = None
    country: _Place | None = None
    timezone: _Place | None = None


class WebSearch(ToolModel):
    """The tool; fields that only other versions have are accepted and echoed."""

    filters: _Filters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: _UserLocation | None = None
    external_web_access: bool | None = None

    idle: ClassVar = {
        "search_content_types": "A search gives text.",
    }
    told: ClassVar = ("search_content_types",)


def echoed_search(tool: JsonObject, at: str) -> JsonObject:
    """Validate a web search as a tool of a request; return it is echoed. Raises `ApiError`."""
    search = validate(WebSearch, tool, at=at)
    for name in ("allowed_domains", "blocked_domains"):
        for index, domain in enumerate(getattr(search.filters, name, None) or ()):
            if not domain or any(each in domain for each in "/: @\n"):
                param = f"{at}.filters.{name}[{index}]"
                raise invalid_value(param, "it is a domain without 'https://' and without a path, like example.com.")
    return tool


MAX_PARTIAL_IMAGES = 3
_SIZE = r"^(auto|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})$"  # `auto`, or width and height such as `1024x1536`
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)  # the head of `data:image/png;base64,…`
_NO_URLS = "Give it as a data URL (data:image/png;base64,…) in 'image_url', or as a 'file_id'."


class SentImage(NamedTuple):
    """An image that a client has sent; one of its fields is set."""

    data: str = ""  # base64
    file_id: str = ""


class _Mask(ClientModel):
    """Which part of an image is edited."""

    image_url: str | None = None
    file_id: str | None = None


class ImageGeneration(ToolModel):
    """The tool; fields that only other versions have are accepted and echoed."""

    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: _Mask | None = None
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: int | None = Field(default=None, ge=0, le=100)
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: int | None = Field(default=None, ge=0, le=MAX_PARTIAL_IMAGES)
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: Annotated[str, StringConstraints(pattern=_SIZE)] | None = None

    refused: ClassVar = dict.fromkeys(  # what only OpenAI's own models have
        ("complexity", "frame_count", "frame_duration_ms", "svg"),
        Refused("The image service of this server does not have it."),
    )


def echoed_image_tool(tool: JsonObject, at: str) -> JsonObject:
    """Validate image generation as a tool of a request; return it is echoed. Raises `ApiError`."""
    declared = validate(ImageGeneration, tool, at=at)
    if declared.output_format in ("gif", "svg"):
        raise unsupported_parameter(f"{at}.output_format", "Images are 'png', 'jpeg' or 'webp' here.")
    mask = declared.input_image_mask
    if mask is not None and sent_image(mask.model_dump()) is None:
        raise invalid_value(f"{at}.input_image_mask.image_url", _NO_URLS)
    return tool


def sent_image(part: JsonObject) -> SentImage | None:
    """Return the image of a part, or of a mask; None where it is at a URL, which nobody opens."""
    url, file_id = part.get("image_url"), part.get("file_id")
    match = _DATA_URL.match(url) if isinstance(url, str) else None
    if match is not None and isinstance(url, str):
        return SentImage(data=url[match.end() :])
    return SentImage(file_id=file_id) if isinstance(file_id, str) and file_id else None


def newest_images(items: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the items with images that can be edited, the newest first: calls that made one, and messages of the user.

    Of a call there may be its id alone: `chain.kept_items` keeps no more.
    """
    for item in reversed(items):
        if item.get("type") == "image_generation_call":
            if item.get("status") != "failed" and (item.get("result") or item.get("id")):
                yield item
        elif item.get("role") == "user" and sent_images(item):
            yield item


def is_image_by_id(item: JsonObject) -> bool:
    """Whether an item is a call that stands for the image it made by its id alone."""
    return item.get("type") == "image_generation_call" and bool(item.get("id")) and not item.get("result")


def sent_images(message: JsonObject) -> list[SentImage]:
    """Return the images of a message, without those at a URL."""
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    images = (sent_image(part) for part in parts if part.get("type") == "input_image")
    return [image for image in images if image is not None]


FOUND = "file_search_call"  # the type of items whose tool keeps it
MAX_STORES = 20  # that one search looks into
MAX_KEPT = 200  # results of a chain that can be cited
MAX_BYTES = 48 * 1024  # of what is kept of them, as JSON: but the latest search, which has `MAX_RESULTS`, always is
_MAX_ID = 64  # characters


class _HybridSearch(ClientModel):
    """How much meanings and words count, where the server has an embedding model for file search."""

    embedding_weight: float = Field(ge=0, le=MAX_WEIGHT)
    text_weight: float = Field(ge=0, le=MAX_WEIGHT)


class _HybridRanking(RankingOptions):
    """How results are ranked, where words and meanings are."""

    hybrid_search: _HybridSearch | None = None


class FileSearch(ToolModel):
    """The tool."""

    vector_store_ids: list[str] = Field(min_length=1, max_length=MAX_STORES)
    max_num_results: int | None = Field(default=None, ge=1, le=MAX_RESULTS)
    filters: JsonObject | None = None
    ranking_options: _HybridRanking | None = None


def echoed_file_search(tool: JsonObject, at: str) -> JsonObject:
    """Validate a file search as a tool of a request; return it is echoed. Raises `ApiError`."""
    search = validate(FileSearch, tool, at=at)
    if search.filters is not None:
        Filter(search.filters, at=f"{at}.filters")
    ranking = search.ranking_options or _HybridRanking()
    hybrid = ranking.hybrid_search
    if hybrid is not None and not hybrid.embedding_weight and not hybrid.text_weight:
        raise invalid_value(f"{at}.ranking_options.hybrid_search", "one of the two weights must be greater than 0.")
    return {
        "type": "file_search",
        "vector_store_ids": search.vector_store_ids,
        "max_num_results": search.max_num_results or DEFAULT_RESULTS,
        "filters": search.filters,
        "ranking_options": {
            "ranker": ranking.ranker or "auto",
            "score_threshold": ranking.score_threshold or 0.0,
            **({} if hybrid is None else {"hybrid_search": hybrid.model_dump()}),
        },
    }


def weighs_meaning(tool: JsonObject) -> bool:
    """Whether a tool is a file search that says how much meanings count."""
    ranking = tool.get("ranking_options")
    return tool.get("type") == "file_search" and isinstance(ranking, dict) and "hybrid_search" in ranking


class FoundFiles:
    """What the searches of a chain have found: the id and the name of the file of each result."""

    def __init__(self, state: JsonObject | None) -> None:
        known: dict[str, Any] = state or {"first": 0, "found": []}
        self._first: int = known["first"]  # the number of the oldest search that is remembered
        self._files: list[list[tuple[str, str]]] = [
            [(file_id, name) for file_id, name in search] for search in known["found"]
        ]

    @property
    def next_search(self) -> int:
        """The number of the search that comes next."""
        return self._first + len(self._files)

    def add(self, results: Sequence[tuple[str, str]]) -> None:
        """Take the results of a search; the oldest are forgotten."""
        self._files.append(list(results))
        # The latest search stays whatever its size: its results are cited now.
        while len(self._files) > 1 and (
            sum(map(len, self._files)) > MAX_KEPT or len(orjson.dumps(self.as_json())) > MAX_BYTES
        ):
            del self._files[0]
            self._first += 1

    def as_json(self) -> JsonObject:
        """Return it is kept."""
        return {"first": self._first, "found": [[list(each) for each in search] for search in self._files]}

    def file(self, search: int, result: int) -> tuple[str, str] | None:
        """Return the id and the name of the file of a result."""
        place = search - self._first
        if not 0 <= place < len(self._files) or result >= len(self._files[place]):
            return None
        return self._files[place][result]


WEB_SEARCH = "web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11".split()
ITEMS: Mapping[str, str] = {  # the type of a tool, and that of the item which a call becomes
    "mcp": "mcp_call",
    "code_interpreter": "code_interpreter_call",
    "file_search": "file_search_call",
    "image_generation": "image_generation_call",
    PROGRAMS: PROGRAM,
    **dict.fromkeys(WEB_SEARCH, "web_search_call"),
}
SCREENS = ("computer", "computer_use", "computer_use_preview")  # which no model here can see
# Tools of OpenAI's that agents declare in every request, whoever serves it: they name nothing that is the client's.
DECLARED_UNASKED = frozenset((*WEB_SEARCH, "image_generation", *SCREENS))
SHELL_ITEM, SHELL_OUTPUT = "shell_call", "shell_call_output"  # what a call of a shell of this server becomes
_SETTINGS: Mapping[str, Sequence[str]] = {  # what sets a tool up
    "shell": ("SANDBOX",),
    "mcp": ("MCP_SERVERS",),
    "code_interpreter": ("SANDBOX", "SANDBOX_MCP"),
    "file_search": ("FILE_SEARCH",),
    "image_generation": ("IMAGE_SERVICE_URL",),
    PROGRAMS: ("SANDBOX",),
    **dict.fromkeys(WEB_SEARCH, ("SEARCH_URL", "SEARCH_MCP")),
}
NO_SCREEN = "This model cannot see a screen, so it cannot use a computer."
_NAMED_BY = {"mcp": "server_label", "namespace": "name"}  # the fields whose value begins the names of several tools
LABEL = r"^[A-Za-z0-9_-]{1,64}$"  # of an MCP server; it is part of the names that the model calls
# What the model knows as something else: an MCP server of this label would be called in its place.
RESERVED_LABELS = frozenset("functions python browser container file_search image_generation".split())
MAX_URL = 2048  # characters
MAX_HEADERS = 64  # that a request may set for one MCP server
_PRIVATE = ("headers", "authorization")  # fields that are never kept
_REDACTED = "?<redacted>"  # stands for a query, which may have a key in it
# Scheme, host with a port, path and query are named; the user before the host and the fragment are dropped. The port
# is a number above 0, and only its form is checked.
_URL = re.compile(
    r"(?P<scheme>https?://)(?:[^/?#@\s]*@)?"
    r"(?P<host>(?:\[[0-9a-f:.]+\]|[^][/?#@:\s]+)(?::0*[1-9][0-9]{0,4})?)"
    r"(?P<path>(?:/[^?#\s]*)?)(?P<query>(?:\?[^#\s]*)?)(?:#\S*)?",
    re.IGNORECASE,
)


class _Filter(ClientModel):
    """Some of a server's tools: by their names, and by whether they change nothing."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class _Approval(ClientModel):
    """Which tools always, and which never, need the user's approval."""

    always: _Filter | None = None
    never: _Filter | None = None


class Programs(ToolModel):
    """Programs that call tools."""


class McpServer(ToolModel):
    """A server of MCP tools: at a URL, or one that the operator has configured by its label."""

    server_label: str = Field(pattern=LABEL)
    server_url: str | None = Field(default=None, min_length=1, max_length=MAX_URL)
    server_description: str | None = Field(default=None, max_length=4096)
    headers: dict[str, str] | None = Field(default=None, max_length=MAX_HEADERS)
    authorization: str | None = Field(default=None, max_length=16_384)
    allowed_tools: list[str] | _Filter | None = None
    require_approval: Annotated[Literal["always", "never"] | _Approval | None, Field(union_mode="left_to_right")] = None
    defer_loading: bool | None = None
    allowed_callers: list[Literal["direct", "programmatic"]] | None = Field(default=None, min_length=1)

    refused: ClassVar = dict.fromkeys(("connector_id", "tunnel_id"), Refused("Name the server by its 'server_url'."))


def item_of(tool: JsonObject) -> str | None:
    """Return the type of the items that calls of a tool become, where a server runs it; None for all others."""
    return SHELL_ITEM if is_hosted_shell(tool) else ITEMS.get(str(tool["type"]))


def server_tool_missing(tool: JsonObject, *, has_setting: Callable[[str], bool] = lambda name: True) -> str | None:
    """Return why a tool cannot be had where nothing is set up for it; None for those that clients run.

    Without the extension that brings the tool there is no setting for it.
    """
    kind = str(tool["type"])
    if kind in SCREENS:
        return NO_SCREEN
    if item_of(tool) is None:
        return None
    settings = " or ".join(filter(has_setting, _SETTINGS[kind])) or "EXTENSIONS"
    return (
        f"A server has to run the tool '{kind}', and none is set up here (see {settings}). Declare a function "
        "and run it in the client."
    )


def parse_server_tool(tool: JsonObject, at: str) -> JsonObject:
    """Validate a tool that a server runs; return it in the form in which it is echoed. Raises `ApiError`."""
    return echoed_shell(tool, at) if is_hosted_shell(tool) else _PARSERS[str(tool["type"])](tool, at)


def private_fields(tools: object) -> Mapping[str, JsonObject]:
    """Return the fields of a request's tools that must not be kept, by `private_key`. `tools` have been validated."""
    private: dict[str, JsonObject] = {}
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            # The first of two: it is the one that the model gets.
            private.setdefault(private_key(tool), _private_of(tool))
    return private


def private_key(tool: JsonObject) -> str:
    """Return the key of a tool's private fields: an MCP server's label, or a type that no label can be."""
    return str(tool.get("server_label")) if tool.get("type") == "mcp" else f"{tool.get('type')}:"


def _private_of(tool: JsonObject) -> JsonObject:
    if tool.get("type") == "mcp":
        # The whole URL is among them: what is echoed lacks its query and its user.
        return {name: tool[name] for name in (*_PRIVATE, "server_url") if tool.get(name) is not None}
    container = tool.get("environment" if tool.get("type") == "shell" else "container")
    secrets = secret_values(container.get("network_policy")) if isinstance(container, dict) else []
    return {"domain_secrets": secrets} if secrets else {}


def refuse_double_labels(tools: Sequence[JsonObject]) -> None:
    """Raise `ApiError` where two MCP servers have one label, or a function is called as a tool of one would be.

    A call names its server by that alone.
    """
    taken = {PROGRAM for tool in tools if tool["type"] == PROGRAMS}
    taken |= {SEARCH_NAMESPACE for tool in tools if is_search_of_server(tool)}
    taken |= {SHELL.partition(".")[0] for tool in tools if is_hosted_shell(tool)}
    refuse_names(tools, taken)
    # The model calls these, or those in them, as it calls the tools of an MCP server: by two names.
    beginnings = {
        name.partition(".")[0]
        for name, kind in ((str(tool.get("name")), tool["type"]) for tool in tools)
        if kind == "namespace" or (kind in ("function", "custom") and "." in name)
    }
    seen: set[object] = set()
    for index, tool in enumerate(tools):
        label = tool.get("server_label") if tool["type"] == "mcp" else None
        if label is not None and label in beginnings:
            why = f"'{label}' is a namespace of 'tools', or begins the name of a function. Choose another one."
            raise invalid_value(f"tools[{index}].server_label", why)
        if label is not None and label in seen:
            raise invalid_value(
                f"tools[{index}].server_label", f"'{label}' is declared twice. Give each server its own."
            )
        seen.add(label)


def refuse_names(tools: Sequence[JsonObject], taken: Collection[str]) -> None:
    """Raise `ApiError` for an MCP server or a namespace with a name by which the model calls a tool of this server."""
    for index, tool in enumerate(tools):
        field = _NAMED_BY.get(str(tool["type"]))
        if field is not None and tool.get(field) in taken:
            raise _taken(tool[field], f"tools[{index}].{field}")


def _taken(name: object, at: str) -> ApiError:
    why = f"'{str(name)[:80]}' is the name by which the model calls a tool of this server. Choose another one."
    return invalid_value(at, why)


def _echoed_server(tool: JsonObject, at: str) -> JsonObject:
    server = validate(McpServer, tool, at=at)
    if server.server_label in RESERVED_LABELS:
        raise _taken(server.server_label, f"{at}.server_label")
    url, parts = server.server_url, None
    if url is not None:
        parts = _URL.fullmatch(url)
        if parts is None:
            why = "it is the address of a server: http:// or https://, a host and a path."
            raise invalid_value(f"{at}.server_url", why)
        url = f"{parts['scheme']}{parts['host']}{parts['path']}{_REDACTED if parts['query'] else ''}"
    allowed, approval = server.allowed_tools, server.require_approval
    return {
        "type": "mcp",
        "server_label": server.server_label,
        "server_url": url,  # without credentials
        "server_description": server.server_description,
        "allowed_tools": allowed.model_dump(exclude_none=True) if isinstance(allowed, _Filter) else allowed,
        "require_approval": approval.model_dump(exclude_none=True)
        if isinstance(approval, _Approval)
        else approval or "always",
        "headers": None,
        "authorization": None,
        **({} if server.defer_loading is None else {"defer_loading": server.defer_loading}),
        **({} if server.allowed_callers is None else {"allowed_callers": server.allowed_callers}),
    }


def _echoed_programs(tool: JsonObject, at: str) -> JsonObject:
    validate(Programs, tool, at=at)
    return {"type": PROGRAMS}


def refuse_without_programs(tools: Sequence[JsonObject]) -> None:
    """Raise `ApiError` for tools that programs alone may call, where there are none, and none that they are told of."""
    has_programs = any(tool["type"] == PROGRAMS for tool in tools)
    for index, tool in enumerate(tools):
        if tool["type"] == "namespace":
            members = tool["tools"]
            for place, member in enumerate(members if isinstance(members, list) else ()):
                _check_function(member, f"tools[{index}].tools[{place}]", has_programs=has_programs)
        _check_function(tool, f"tools[{index}]", has_programs=has_programs)
        if tool["type"] == "mcp" and not by_model(tool) and (not has_programs or tool.get("defer_loading")):
            needs = f"leave 'defer_loading' out, and declare the tool '{PROGRAMS}', or allow 'direct', too."
            raise invalid_value(f"tools[{index}].allowed_callers", needs)


def _check_function(tool: JsonObject, at: str, *, has_programs: bool) -> None:
    if tool["type"] != "function" or not by_programs(tool):
        return
    if not has_programs and not by_model(tool):
        raise invalid_value(f"{at}.allowed_callers", f"declare the tool '{PROGRAMS}', or allow 'direct', too.")
    for name in ("defer_loading", "async"):
        if tool.get(name):
            raise invalid_value(f"{at}.allowed_callers", f"programs cannot call what has '{name}': leave that out.")


_PARSERS: Mapping[str, Callable[[JsonObject, str], JsonObject]] = {
    "mcp": _echoed_server,
    "code_interpreter": echoed_interpreter,
    "file_search": echoed_file_search,
    "image_generation": echoed_image_tool,
    PROGRAMS: _echoed_programs,
    **dict.fromkeys(WEB_SEARCH, echoed_search),
}
