"""Options without secrets: hidden by their name, or inside of their value."""

from __future__ import annotations

import pytest

from shardline.app.protocol.objects import SinkDescription, ViewDescription
from shardline.app.protocol.redaction import HIDDEN, redact_description, redact_option


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("s3.secret.key", "k", HIDDEN),
        ("password", "k", HIDDEN),
        ("spark.hadoop.fs.s3a.access.key", "k", HIDDEN),
        ("password", "", ""),
        (
            "kafka.sasl.jaas.config",
            'o.PlainLoginModule required username="me" password="hun,ter;2";',
            f'o.PlainLoginModule required username="me" password={HIDDEN};',
        ),
        ("x", "password='hunter2'", f"password={HIDDEN}"),
        ("url", "jdbc:pg://me:p@ss@host:5/db?ssl=1", f"jdbc:pg://{HIDDEN}@host:5/db?ssl=1"),
        (
            "url",
            "jdbc:pg://h/db?user=me&password=x&ssl=1",
            f"jdbc:pg://h/db?user=me&password={HIDDEN}&ssl=1",
        ),
        ("conn", "AccountKey=abc==;Endpoint=x", f"AccountKey={HIDDEN};Endpoint=x"),
        ("json", '{"password": "abc", "user": 1}', f'{{"password": {HIDDEN}, "user": 1}}'),
        ("path", "s3://bucket/a@b?x=1", "s3://bucket/a@b?x=1"),
        ("kafka.bootstrap.servers", "h:1,g:2", "h:1,g:2"),
    ],
)
def test_a_value_is_shown_without_its_secrets(option: str, value: str, expected: str) -> None:
    """By the option's name all of it, else the parts that are secrets and nothing else."""
    assert redact_option(option, value) == expected


def test_a_description_keeps_all_else() -> None:
    """Options that are none are as they were; what has no options is the same."""
    sink = SinkDescription(name="o", on="v", format="x", options={"path": "p", "token": "t"})
    assert redact_description(sink).options == {"path": "p", "token": HIDDEN}
    view = ViewDescription(name="v", query="SELECT 1", inputs=(), schema="a INT")
    assert redact_description(view) is view
