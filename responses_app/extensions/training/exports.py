"""An export of roll-outs: which ones a request wants, and the file of their rows, as JSON Lines or as Parquet.

pyarrow is the extra `parquet` of this package, and imported where a file is written. Columns of Parquet are the keys of
the rows. What has no shape of its own, such as rewards by name, is JSON text; a whole tree and a whole trace are one
column of it.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine import orjson
from responses_app.extensions.training.training_rows import FORMATS, Row, total_of, whole_reward
from responses_app.protocol.errors import ApiError, invalid_value
from responses_app.protocol.fields import whole_number
from responses_app.protocol.json_text import dumps
from responses_app.protocol.requests.pages import Query
from responses_app.protocol.rollouts.requests import RolloutObject, checked_name
from responses_app.protocol.rollouts.tree import RolloutTree

FileType = Literal["jsonl", "parquet"]
FILE_TYPES: tuple[FileType, ...] = ("jsonl", "parquet")
STATUSES = ("open", "ended")
MAX_TIME = 1 << 40  # Unix seconds
GROUP_VALUES = 1 << 18  # tokens and the like, after which rows are written
INSTALL = "pip install 'respsite[parquet]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which roll-outs an export has. What is None does not matter."""

    group: str | None = None
    status: str | None = None  # "open" or "ended"
    version: str | None = None  # of the weights that at least one token was sampled by
    min_reward: float | None = None  # of the whole roll-out; parts are summed. Without a reward it is not taken
    max_reward: float | None = None
    created_after: int | None = None  # Unix seconds; at this time, or later
    created_before: int | None = None  # earlier than this

    def takes(self, head: RolloutObject) -> bool:
        """Whether a roll-out is taken, as far as that shows without its tokens."""
        created = head["created_at"]
        return (
            self.group in (None, head["group"])
            and self.status in (None, head["status"])
            and (self.created_after is None or created >= self.created_after)
            and (self.created_before is None or created < self.created_before)
            and self._has_reward(head)
        )

    def takes_tree(self, tree: RolloutTree) -> bool:
        """Whether it is taken, now that its tokens are known."""
        if self.version is None:
            return True
        spans = (span for path in tree.paths for span in path.generation.call.weights)
        return any(span.version == self.version for span in spans)

    def _has_reward(self, head: RolloutObject) -> bool:
        if self.min_reward is None and self.max_reward is None:
            return True
        total = total_of(whole_reward(head))
        low = -math.inf if self.min_reward is None else self.min_reward
        high = math.inf if self.max_reward is None else self.max_reward
        return total is not None and low <= total <= high


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportQuery:
    """An export."""

    format: str = "tree"
    file_type: FileType = "jsonl"
    after: str | None = None  # the roll-out behind which it begins
    selection: Selection = EVERYTHING


def parse_export(query: Query) -> ExportQuery:
    """Read the query of an export. Raises `ApiError` that names the parameter that is wrong."""
    after = _last(query, "after")
    return ExportQuery(
        format=_one_of(query, "format", tuple(FORMATS)) or "tree",
        file_type="parquet" if _one_of(query, "file_type", FILE_TYPES) == "parquet" else "jsonl",
        after=None if after is None else checked_name(after, "after"),
        selection=Selection(
            group=_last(query, "group"),
            status=_one_of(query, "status", STATUSES),
            version=_last(query, "version"),
            min_reward=_number(query, "min_reward"),
            max_reward=_number(query, "max_reward"),
            created_after=_time(query, "created_after"),
            created_before=_time(query, "created_before"),
        ),
    )


def too_many_exports() -> ApiError:
    """As many exports run as one process makes at once (429)."""
    return ApiError(
        "As many exports of roll-outs run as this server makes at once. Try again when one has ended.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
    )


def _last(query: Query, name: str) -> str | None:
    return (query.get(name) or [""])[-1] or None


def _one_of(query: Query, name: str, known: tuple[str, ...]) -> str | None:
    given = _last(query, name)
    if given is not None and given not in known:
        raise invalid_value(name, f"{given[:80]!r} is none of: {', '.join(known)}.")
    return given


def _number(query: Query, name: str) -> float | None:
    given = _last(query, name)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise invalid_value(name, f"{given[:80]!r} is no finite number.")
    return number


def _time(query: Query, name: str) -> int | None:
    given = _last(query, name)
    number = None if given is None else whole_number(given, 0, MAX_TIME)
    if given is not None and number is None:
        raise invalid_value(name, f"{given[:80]!r} is no time in Unix seconds.")
    return number


class RowWriter(Protocol):
    """Makes a file of rows, piece by piece."""

    def add(self, row: Row) -> bytes:
        """Take a row; return the next piece of the file, which may be empty."""

    def end(self) -> bytes:
        """Return the last piece of the file."""


class JsonRows:
    """Writes each row as a line of JSON."""

    def add(self, row: Row) -> bytes:
        """Return the line of a row."""
        return dumps(row) + b"\n"

    def end(self) -> bytes:
        """Return nothing: the file ends with its last line."""
        return b""


class ParquetMissing(Exception):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__(f"Parquet needs pyarrow, which is not installed: {INSTALL}")


class ParquetRows:
    """Writes rows of one format as a file that is handed on in pieces."""

    def __init__(self, name: str) -> None:
        """Raises `ParquetMissing`."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ParquetMissing from None
        self._arrow = pyarrow
        self._schema = pyarrow.schema(_COLUMNS[name](pyarrow))
        self._name = name
        self._sink = _Pieces()
        self._writer = pyarrow.parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._values = 0

    def add(self, row: Row) -> bytes:
        """Take a row; return the next piece of the file, which may be empty."""
        self._values += _values(row)
        if self._name in _WHOLE:
            row = {**row, _WHOLE[self._name]: row, "rollout_id": row.get("rollout_id", row["id"])}
        self._rows.append({field.name: self._fit(row[field.name], field.type) for field in self._schema})
        return self._written() if self._values >= GROUP_VALUES else b""

    def end(self) -> bytes:
        """Return the last piece of the file."""
        last = self._written() if self._rows else b""
        self._writer.close()
        return last + self._sink.taken()

    def _written(self) -> bytes:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
        self._rows, self._values = [], 0
        return self._sink.taken()

    def _fit(self, value: Any, kind: Any) -> Any:
        """Return a value as a column of this type takes it."""
        types = self._arrow.types
        if value is None or isinstance(value, str):
            return value
        if types.is_string(kind):
            return orjson.dumps(value).decode()
        if types.is_struct(kind):
            return {field.name: self._fit(value[field.name], field.type) for field in kind}
        if types.is_list(kind) and types.is_nested(kind.value_type):
            return [self._fit(each, kind.value_type) for each in value]
        return value


def writer_of(query: ExportQuery) -> RowWriter:
    """Return the writer of an export's rows. Raises `ParquetMissing`."""
    return ParquetRows(query.format) if query.file_type == "parquet" else JsonRows()


class _Pieces(io.RawIOBase):
    """A file that keeps what was written since somebody took it."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        self._kept += piece
        return len(piece)

    def taken(self) -> bytes:
        """Return the bytes that were written, and forget them."""
        taken, self._kept = bytes(self._kept), bytearray()
        return taken


def _values(value: object) -> int:
    """Return how many numbers and the like are in a value."""
    if isinstance(value, Mapping):
        return sum(_values(each) for each in value.values())
    if not isinstance(value, list) or not value:
        return 1
    return sum(_values(each) for each in value) if isinstance(value[0], list | dict) else len(value)


def _head(arrow: Any) -> list[tuple[str, Any]]:
    return [("rollout_id", arrow.string()), ("group", arrow.string())]


def _sequence(arrow: Any) -> list[tuple[str, Any]]:
    return [
        *_head(arrow),
        ("sequence", arrow.string()),
        ("branch", arrow.string()),
        ("reward", arrow.float64()),
        ("weights", _spans(arrow)),
    ]


def _spans(arrow: Any) -> Any:
    return arrow.list_(arrow.struct([("version", arrow.string()), ("tokens", arrow.int64())]))


def _nemo_gym(arrow: Any) -> list[tuple[str, Any]]:
    text, number, real = arrow.string(), arrow.int64(), arrow.float64()
    tokens = arrow.list_(arrow.uint32())
    return [
        *_head(arrow),
        ("schema_version", number),
        ("model_call_id", text),
        ("model", text),
        ("prompt_token_ids", tokens),
        ("prompt_is_delta", arrow.bool_()),
        ("generation_token_ids", tokens),
        ("generation_log_probs", arrow.list_(real)),
        ("routed_experts", text),
        ("response_id", text),
        ("created_at", real),
        ("parent_call_id", text),
        ("parent_resolution", text),
        ("cum_len", number),
        ("digest", text),
        ("branch", text),
        ("agent", text),
        ("finish_reason", text),
        ("weights", _spans(arrow)),
        ("reward", real),
    ]


def _trl(arrow: Any) -> list[tuple[str, Any]]:
    return [
        *_sequence(arrow),
        ("input_ids", arrow.list_(arrow.uint32())),
        ("completion_mask", arrow.list_(arrow.uint8())),
        ("old_log_probs", arrow.list_(arrow.float64())),
        ("model_version", arrow.int64()),
        ("group_id", arrow.int64()),
        ("metrics", arrow.string()),
    ]


def _harbor(arrow: Any) -> list[tuple[str, Any]]:
    tokens, number = arrow.list_(arrow.list_(arrow.uint32())), arrow.int64()
    logprobs = arrow.list_(arrow.list_(arrow.float64()))
    detail = arrow.struct(
        [
            ("prompt_token_ids", tokens),
            ("completion_token_ids", tokens),
            ("logprobs", logprobs),
            ("extra", arrow.string()),
        ]
    )
    return [
        ("rollout_id", arrow.string()),
        ("n_input_tokens", number),
        ("n_output_tokens", number),
        ("rollout_details", arrow.list_(detail)),
        ("metadata", arrow.string()),
    ]


def _tinker(arrow: Any) -> list[tuple[str, Any]]:
    def tensor(values: Any) -> Any:
        return arrow.struct(
            [("data", arrow.list_(values)), ("dtype", arrow.string()), ("shape", arrow.list_(arrow.int64()))]
        )

    chunk = arrow.struct([("type", arrow.string()), ("tokens", arrow.list_(arrow.uint32()))])
    inputs = [("target_tokens", arrow.int64()), ("logprobs", arrow.float32()), ("mask", arrow.float32())]
    datum = arrow.struct(
        [
            ("model_input", arrow.struct([("chunks", arrow.list_(chunk))])),
            ("loss_fn_inputs", arrow.struct([(name, tensor(values)) for name, values in inputs])),
        ]
    )
    return [*_sequence(arrow), ("rewards", arrow.string()), ("datum", datum)]


# The columns of each format, given pyarrow.
_COLUMNS: dict[str, Callable[[Any], list[tuple[str, Any]]]] = {
    "tree": lambda arrow: [
        *_head(arrow),
        ("created_at", arrow.int64()),
        ("status", arrow.string()),
        ("tree", arrow.string()),
    ],
    "nemo-gym": _nemo_gym,
    "trl": _trl,
    "harbor": _harbor,
    "verifiers": lambda arrow: [*_head(arrow), ("trace", arrow.string())],
    "tinker": _tinker,
}
_WHOLE = {"tree": "tree", "verifiers": "trace"}  # by format, the column that has the whole row
