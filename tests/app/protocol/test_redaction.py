"""Options without secrets: hidden by their name, or inside of their value."""

from __future__ import annotations

import pytest

from shardline.app.protocol.objects import SinkDescription, ViewDescription
from shardline.app.protocol.redaction import (
    HIDDEN,
    redact_description,
    redact_option,
    redact_text,
)
from shardline.app.sql.problems import Script


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
        ("ssl.key.passphrase", "k", HIDDEN),
        ("api_key", "k", HIDDEN),
        ("kafka.ssl.private-key", "k", HIDDEN),
        ("headers", "Authorization: abc", f"Authorization: {HIDDEN}"),
        ("path", "s3://bucket/a@b?x=1", "s3://bucket/a@b?x=1"),
        ("kafka.bootstrap.servers", "h:1,g:2", "h:1,g:2"),
    ],
)
def test_a_value_is_shown_without_its_secrets(option: str, value: str, expected: str) -> None:
    """By the option's name all of it, else the parts that are secrets and nothing else."""
    assert redact_option(option, value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OPTIONS (password 'hunter2', x 'y')", f"OPTIONS (password {HIDDEN}, x 'y')"),
        ("`kafka.api_key`='a''b\\'c' y", f"`kafka.api_key`={HIDDEN} y"),
        ('passphrase "it is', f"passphrase {HIDDEN}"),
        ("url 'jdbc:x://me:pw@h/d'", f"url 'jdbc:x://{HIDDEN}@h/d'"),
        ("SELECT token FROM t WHERE k = 'v'", "SELECT token FROM t WHERE k = 'v'"),
    ],
)
def test_a_piece_of_a_project_is_shown_without_its_secrets(text: str, expected: str) -> None:
    """Options stand in quotes behind their names; a line may end inside of one."""
    assert redact_text(text) == expected


def test_an_error_beside_a_secret_does_not_show_it() -> None:
    """The line is shown without it, and the caret is where the error is."""
    script = Script("a.sql", "OPTIONS (password 'hunter2', pth 'y')")
    assert script.place(script.text.index("pth")).shown().splitlines() == [
        "OPTIONS (password (secret), pth 'y')",
        "                            ^",
    ]


def test_a_description_keeps_all_else() -> None:
    """Options that are none are as they were; what has no options is the same."""
    sink = SinkDescription(name="o", on="v", format="x", options={"path": "p", "token": "t"})
    assert redact_description(sink).options == {"path": "p", "token": HIDDEN}
    view = ViewDescription(name="v", query="SELECT 1", inputs=(), schema="a INT")
    assert redact_description(view) is view
