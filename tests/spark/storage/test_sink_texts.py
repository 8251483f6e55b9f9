"""Texts that a sink writes into files come back from Spark's readers as they were."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.protocol.objects import SinkDescription
from support.spark.sinks import Input, running

if TYPE_CHECKING:
    from shardline.app.execution.host import Host

pytestmark = pytest.mark.spark

TEXTS = [
    None, " ", " a ", "\t", "a\nb", "a\r\nb", "x\r", '"', '""', "a,b", "\\", 'a\\"', "\\n", "null",
]  # fmt: skip

READ = {
    "csv": {"multiLine": "true", "nullValue": "-"},
    "json": {},
    "xml": {"rowTag": "line", "ignoreSurroundingSpaces": "false"},
}
"""Options of readers, as the documentation of sinks has them."""


@pytest.mark.parametrize("format_", sorted(READ))
def test_texts_come_back_as_they_were(
    host: Host, source: Input, tmp_path: Path, format_: str
) -> None:
    """Blanks and line ends among them, and in `csv` an empty one, where NULL has a word."""
    # A carriage return in XML is a line feed to every reader, by its standard.
    texts = [text for text in TEXTS if format_ != "xml" or "\r" not in (text or "")] + [""]
    path = str(tmp_path / "out")
    options = {
        name: text for name, text in READ[format_].items() if name in ("nullValue", "rowTag")
    }
    sink = SinkDescription(name="out", on="in", format=format_, options={"path": path, **options})
    upper = source.step(10, *((number, text, 1) for number, text in enumerate(texts)))
    with running(host, sink) as reports:
        reports.reached(upper)
    reader = host.spark.read.schema("k BIGINT, v STRING").format(format_)
    rows = reader.options(**READ[format_]).load(path).select("k", "v").collect()
    assert sorted(tuple(row) for row in rows) == list(enumerate(texts))
