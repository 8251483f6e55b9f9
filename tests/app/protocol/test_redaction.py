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

PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nabc/+=\n-----END RSA PRIVATE KEY-----"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nxyz/+=\n-----END CERTIFICATE-----"


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
        ("headers", "Authorization: Bearer abc", f"Authorization: {HIDDEN}"),
        (
            "headers",
            '{"Proxy-Authorization": "Basic abc", "x": 1}',
            f'{{"Proxy-Authorization": {HIDDEN}, "x": 1}}',
        ),
        (
            "curl",
            """-H 'Authorization: Digest username="me", response="abc"' -H 'Accept: x'""",
            f"-H 'Authorization: {HIDDEN}' -H 'Accept: x'",
        ),
        ("curl", '-H "Authorization: Bearer a b" -H x', f'-H "Authorization: {HIDDEN}" -H x'),
        ("headers", "Authorization: Bearer abc\nAccept: x", f"Authorization: {HIDDEN}\nAccept: x"),
        ("json", '{"password": "abc', f'{{"password": {HIDDEN}'),
        ("kafka.ssl.keystore.key", PRIVATE_KEY, HIDDEN),
        ("pem", f"{CERTIFICATE}{PRIVATE_KEY}{CERTIFICATE}", f"{CERTIFICATE}{HIDDEN}{CERTIFICATE}"),
        ("pem", PRIVATE_KEY[:50], HIDDEN),
        ("kafka.ssl.keystore.certificate.chain", CERTIFICATE, CERTIFICATE),
        ("kafka.ssl.truststore.certificates", CERTIFICATE, CERTIFICATE),
        ("kafka.ssl.keystore.location", "/etc/kafka/keys.jks", "/etc/kafka/keys.jks"),
        ("kafka.ssl.keystore.type", "PEM", "PEM"),
        ("schema.registry.basic.auth.user.info", "me:pw", HIDDEN),
        ("x", "basic.auth.user.info=me:pw;y=1", f"basic.auth.user.info={HIDDEN};y=1"),
        ("url", "jdbc:oracle:thin:me/pw@//h:1521/s", f"jdbc:oracle:thin:{HIDDEN}@//h:1521/s"),
        ("url", "jdbc:oracle:thin:@//h:1521/s", "jdbc:oracle:thin:@//h:1521/s"),
        ("url", "jdbc:oracle:thin:/@alias", "jdbc:oracle:thin:/@alias"),
        ("path", "s3a://KEY:se/cr+/et@bucket/a", f"s3a://{HIDDEN}@bucket/a"),
        ("path", "s3a://KEY:secret@bucket/a@b", f"s3a://{HIDDEN}@bucket/a@b"),
        ("path", "s3://bucket/a@b?x=1", "s3://bucket/a@b?x=1"),
        ("path", "s3://bucket/10:30/a@b", "s3://bucket/10:30/a@b"),
        ("path", "hdfs://node:8020/a@b", "hdfs://node:8020/a@b"),
        ("path", "hdfs://[::1]:8020/a@b", "hdfs://[::1]:8020/a@b"),
        ("url", "mongodb://h:27017,g:27018/d?x=a@b", "mongodb://h:27017,g:27018/d?x=a@b"),
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
        ("WHERE t.token = s.token AND k = 'v'", "WHERE t.token = s.token AND k = 'v'"),
        ("headers 'Authorization: Bearer abc', y", f"headers 'Authorization: {HIDDEN}', y"),
        ("conn 'AccountKey=abc==;Endpoint=x'", f"conn 'AccountKey={HIDDEN};Endpoint=x'"),
        (f"`ssl.keystore.key` '{PRIVATE_KEY}', y", f"`ssl.keystore.key` {HIDDEN}, y"),
        (f"pem '{PRIVATE_KEY}', y", f"pem '{HIDDEN}', y"),
        ("url 'jdbc:oracle:thin:me/pw@h', y", f"url 'jdbc:oracle:thin:{HIDDEN}@h', y"),
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
