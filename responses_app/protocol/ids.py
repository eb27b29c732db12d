"""Ids: a prefix and a UUID v7 (RFC 9562) as 32 lowercase hex digits, ordered and unique within a millisecond too.

`PublicId`: the id that clients know a response by, where that is not its own. A response's own id is always made by
this server: it names its row, its part of a chain and its log, and makes the ids of its items. Two things give it a
public id beside: a client that chooses one (`request_id`), and the dialect switch `turn-id`, with which all responses
of a turn have one id. Each of those is a *leg* of the turn, with a number.

What an id stands for: who reads it means the newest leg, whatever became of that; who deletes it means all legs; who
continues it means the leg that `leg_to_continue` says.
"""

import re
from collections.abc import Collection, Sequence, Set
from hashlib import blake2b
from typing import NamedTuple

RESPONSE = "resp_"
MESSAGE = "msg_"
REASONING = "rs_"
FUNCTION_CALL = "fc_"
FUNCTION_CALL_OUTPUT = "fco_"
CUSTOM_TOOL_CALL = "ctc_"
LOCAL_SHELL_CALL = "lsh_"
SHELL_CALL = "sh_"
SHELL_CALL_OUTPUT = "sho_"
APPLY_PATCH_CALL = "apc_"
TOOL_SEARCH_CALL = "tsc_"
TOOL_SEARCH_OUTPUT = "tso_"
PROGRAM = "prog_"
PROGRAM_OUTPUT = "po_"
COMPACTION = "cmp_"
MCP_CALL = "mcp_"
MCP_LIST_TOOLS = "mcpl_"
MCP_APPROVAL_REQUEST = "mcpr_"
CODE_INTERPRETER_CALL = "ci_"
WEB_SEARCH_CALL = "ws_"
IMAGE_GENERATION_CALL = "ig_"
MULTI_AGENT_CALL = "mac_"
MULTI_AGENT_CALL_OUTPUT = "maco_"
AGENT_MESSAGE = "amsg_"
ITEM = "item_"  # of a type that only clients use
CALL = "call_"
CHAT_COMPLETION = "chatcmpl-"  # with the hyphen that OpenAI's have
CONVERSATION = "conv_"
FILE = "file-"  # with the hyphen that OpenAI's have
UPLOAD = "upload_"
UPLOAD_PART = "part_"
VECTOR_STORE = "vs_"
VECTOR_STORE_BATCH = "vsfb_"
FILE_SEARCH_CALL = "fs_"  # OpenAI's
EMBEDDING = "embd-"
COMPLETION = "cmpl-"
DECISION = "decision-"
WORKER = "worker_"
CONNECTION = "ws-"
STEER = "steer_"
REQUEST = "req_"
BATCH = "batch_"
MESSAGE_BATCH = "msgbatch_"  # of Anthropic's API
PROMPT = "pmpt_"
API_KEY = "key_"
ADMIN_KEY = "adminkey_"
PROJECT = "proj_"  # of one whose name cannot be an id
CONTAINER = "cntr_"
CONTAINER_FILE = "cfile_"
ROLLOUT = "rollout_"
SKILL = "skill_"
SKILL_VERSION = "skillver_"
USAGE = "usage_"  # of what a request used that made nothing with an id

_NUMBER = re.compile(r"[0-9a-f]{12}7[0-9a-f]{19}", re.ASCII)  # a UUID of version 7: 12 digits are its milliseconds
COUNTER_BITS = 12  # rand_a of RFC 9562 section 5.7, used as a counter (section 6.2, method 1)


def milliseconds_of(made: str) -> int | None:
    """Return when an id was made, in Unix milliseconds; None for one that is not ours.

    A made-up id may name a time that no database takes: it is of the year 6429 at the latest.
    """
    number = made[-32:]
    is_ours = made[-33:-32] in ("_", "-") and _NUMBER.fullmatch(number) is not None
    return min(int(number[:12], 16), 2**47) if is_ours else None


def is_made(text: str, prefix: str) -> bool:
    """Whether a text is an id with this prefix, there or gone or never given: it has its place among all others."""
    return text.startswith(prefix) and _NUMBER.fullmatch(text, len(prefix)) is not None


class DerivedIds:
    """Makes the ids inside one response: the same ones, in the same order, wherever the response is rebuilt.

    An id has the response's own milliseconds, its place in the 12 ordered bits, and a digest, under a `key` that
    clients do not know, of the response's id and the place; so ids are ordered, unique and cannot be guessed. A
    response of more than 4,096 ids carries into the milliseconds.
    """

    def __init__(self, response_id: str, *, created_ms: int, key: bytes) -> None:
        self._response_id = response_id.encode()
        self._base = created_ms << COUNTER_BITS
        self._key = key
        self._place = 0  # how many ids were made; the first has place 1

    def __call__(self, prefix: str) -> str:
        """Return the next id."""
        self._place += 1
        milliseconds, counter = divmod(self._base + self._place, 1 << COUNTER_BITS)
        digest = blake2b(b"%b %d" % (self._response_id, self._place), key=self._key, digest_size=8).digest()
        # 62 of the digest's 64 bits fill what is chance in other ids.
        random = int.from_bytes(digest, "big") >> 2
        value = milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | random
        return f"{prefix}{value:032x}"


class PublicId(NamedTuple):
    """What clients call a response, where that is not its own id."""

    name: str
    leg: int = 1  # counts the responses of one name

    @property
    def next_leg(self) -> "PublicId":
        """The id of the response that goes on with the same turn."""
        return PublicId(self.name, self.leg + 1)


def system_fingerprint(model: str, version: str) -> str:
    """Return the fingerprint of a server in its completions: another one for another version of it."""
    return "fp_" + blake2b(f"{version} {model}".encode(), digest_size=5).hexdigest()


class Leg(NamedTuple):
    """A response under its public id."""

    response_id: str  # the response's own
    number: int  # which leg of the turn it is, from 1 on


class TurnLeg(NamedTuple):
    """A leg as whoever continues its turn looks at it."""

    response_id: str
    number: int
    status: str  # the response's
    # Calls that what continues it must answer; None where nothing can continue it.
    awaited: Collection[str] | None


def leg_to_continue(legs: Sequence[TurnLeg], answered: Set[str]) -> TurnLeg | None:
    """Return the leg of a turn that a request with outputs of the calls `answered` continues; `legs`: the newest first.

    That is the newest that can be continued: one that failed or was cancelled is passed over, so the request that it
    was made for can be sent again. Where a later leg has answered those calls already, it is the one that made them:
    else the model would read their outputs a second time, behind its own answer.
    """
    continuable = [leg for leg in legs if leg.awaited is not None]
    made = (leg for leg in continuable if leg.awaited and not answered.isdisjoint(leg.awaited))
    # The newest first: so `made` gives the latest leg whose calls these are.
    return next(made, continuable[0] if continuable else None)
