"""Rows as a file: JSON Lines, or Parquet with pyarrow.

pyarrow is the extra `parquet` of this package, and imported where a file is written. Columns of Parquet are the keys of
the rows. What has no shape of its own, such as rewards by name, is JSON text; a whole tree and a whole trace are one
column of it.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine import orjson
from responses_app.protocol.json_text import dumps
from responses_app.protocol.rollouts.exports.requests import ExportQuery
from responses_app.protocol.rollouts.exports.rows import Row

GROUP_VALUES = 1 << 18  # tokens and the like, after which rows are written
INSTALL = "pip install 'respsite[parquet]'"


class RowWriter(Protocol):
    """Makes a file of rows, piece by piece."""

    def add(self, row: Row) -> bytes:
        """Take a row; return the next piece of the file, which may be empty."""

    def end(self) -> bytes:
        """Return the last piece of the file."""


class JsonLines:
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
        self._rows.append(self._fitting(row))
        self._values += _values(row)
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

    def _fitting(self, row: Row) -> Row:
        if self._name in _WHOLE:
            row = {**row, _WHOLE[self._name]: row, "rollout_id": row.get("rollout_id", row["id"])}
        return {field.name: self._fit(row[field.name], field.type) for field in self._schema}

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
    """Return what writes the rows of an export. Raises `ParquetMissing`."""
    return ParquetRows(query.format) if query.file_type == "parquet" else JsonLines()


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
        """Return what was written, and forget it."""
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


def _tree(arrow: Any) -> list[tuple[str, Any]]:
    return [*_head(arrow), ("created_at", arrow.int64()), ("status", arrow.string()), ("tree", arrow.string())]


def _verifiers(arrow: Any) -> list[tuple[str, Any]]:
    return [*_head(arrow), ("trace", arrow.string())]


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
    "tree": _tree,
    "nemo-gym": _nemo_gym,
    "trl": _trl,
    "harbor": _harbor,
    "verifiers": _verifiers,
    "tinker": _tinker,
}
_WHOLE = {"tree": "tree", "verifiers": "trace"}  # by format, the column that has the whole row
