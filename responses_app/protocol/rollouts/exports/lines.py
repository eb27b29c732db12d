"""Rows as JSON Lines."""

from typing import Protocol

import orjson

from responses_app.protocol.rollouts.exports.parquet import ParquetRows
from responses_app.protocol.rollouts.exports.requests import ExportQuery
from responses_app.protocol.rollouts.exports.rows import Row


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
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

    def end(self) -> bytes:
        """Return nothing: the file ends with its last line."""
        return b""


def writer_of(query: ExportQuery) -> RowWriter:
    """Return what writes the rows of an export. Raises `ParquetMissing`."""
    return ParquetRows(query.format) if query.file_type == "parquet" else JsonLines()
