"""Messages: what is encoded is read back, today and for ever; what is anything else is refused."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.protocol.codec import COMPUTE, PROTOCOL_VERSION, STORAGE, Codec
from shardline.app.protocol.compute import ComputeCommand, ComputeResponse, Hello
from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.storage import StorageCommand, StorageResponse
from shardline.datasource.errors import InvalidUsage
from support.fakes.replicas import thorough
from support.strategies.messages import MESSAGES, SOURCE
from support.tree import GOLDEN

VALUES = GOLDEN / "protocol" / f"values-{PROTOCOL_VERSION}.jsonl"
UNIONS = {
    "compute command": ComputeCommand,
    "compute response": ComputeResponse,
    "storage command": StorageCommand,
    "storage response": StorageResponse,
}
CODECS: dict[str, Codec[Any, Any]] = {"compute": COMPUTE, "storage": STORAGE}
EVERY = [(kind, value) for kind, values in MESSAGES.items() for value in values]


def encode(kind: str, value: Any) -> bytes:
    protocol, what = kind.split()
    codec = CODECS[protocol]
    return codec.encode_command(value) if what == "command" else codec.encode_response(value)


def decode(kind: str, data: bytes) -> Any:
    protocol, what = kind.split()
    codec = CODECS[protocol]
    return codec.decode_command(data) if what == "command" else codec.decode_response(data)


@pytest.mark.parametrize("kind", UNIONS)
def test_there_is_an_example_of_everything(kind: str) -> None:
    """The golden file misses no command and no response."""
    members = set(typing.get_args(UNIONS[kind]))
    assert members == {type(value) for value in MESSAGES[kind]}


def test_every_value_ever_written_is_read() -> None:
    """The golden file is what is written today, and is read back as what it was."""
    lines = [json.loads(line) for line in VALUES.read_text().splitlines()]
    assert [line["kind"] for line in lines] == [kind for kind, _ in EVERY]
    for line, (kind, value) in zip(lines, EVERY, strict=True):
        data = json.dumps(line["value"]).encode()
        assert decode(kind, data) == value
        assert json.loads(encode(kind, value)) == line["value"]


@pytest.mark.parametrize("version", range(1, PROTOCOL_VERSION))
def test_every_value_of_a_former_version_is_read(version: int) -> None:
    """Stored or replayed, it means what it meant: what it does not say has its default."""
    former = GOLDEN / "protocol" / f"values-{version}.jsonl"
    for line in map(json.loads, former.read_text().splitlines()):
        value = decode(line["kind"], json.dumps(line["value"]).encode())
        again = json.loads(encode(line["kind"], value))
        assert says_all_of(again, line["value"]), line


def says_all_of(whole: Any, part: Any) -> bool:
    """True if `whole` has all fields of `part`, at every depth, with the same values."""
    if not isinstance(part, dict):
        return bool(whole == part)
    return all(name in whole and says_all_of(whole[name], part[name]) for name in part)


@pytest.mark.parametrize(("kind", "value"), EVERY)
def test_nothing_is_skipped(kind: str, value: Any) -> None:
    """A field too many is refused at every depth, and so is one too few or of another type."""
    whole = json.loads(encode(kind, value))
    for path in objects_in(whole):
        damaged = json.loads(encode(kind, value))
        inner = damaged
        for step in path:
            inner = inner[step]
        inner["surprise"] = 1
        with pytest.raises(InvalidUsage, match="MALFORMED_MESSAGE"):
            decode(kind, json.dumps(damaged).encode())
    required = next((name for name in whole if name in ("id", "uuid", "nonce")), None)
    if required:
        for damaged in ({**whole, required: 7}, {k: v for k, v in whole.items() if k != required}):
            with pytest.raises(InvalidUsage, match="MALFORMED_MESSAGE"):
                decode(kind, json.dumps(damaged).encode())


def objects_in(value: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the objects that have a type; the others are dictionaries of anything."""
    inner = [
        path
        for name, item in value.items()
        if isinstance(item, dict) and ("type" in item or "name" in item)
        for path in objects_in(item, (*at, name))
    ]
    return [at, *inner]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"type":"explode"}',
        b'{"type":"frontiers","id":"a"}',  # a response
        b'{"type":"run_ingestion"}',  # of the other protocol
        b'{"type":"allow_compaction","id":"a","frontier":9223372036854775808}',
        b'{"type":"allow_compaction","id":"a","frontier":1.5}',
        b'{"type":"allow_compaction","id":"a"}',
        b'{"type":"schedule","id":"a"}{"type":"schedule","id":"b"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_command_is_refused(data: bytes) -> None:
    """Nonsense of every kind is the same error."""
    with pytest.raises(InvalidUsage, match=r"\[MALFORMED_MESSAGE\] this is no command of the"):
        COMPUTE.decode_command(data)


@given(st.binary(max_size=60))
@thorough
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    """No bytes at all make anything but a value or the one error."""
    for decoder in (COMPUTE.decode_command, COMPUTE.decode_response, COMPUTE.decode_opening):
        try:
            decoder(data)
        except InvalidUsage as error:
            assert error.code == "MALFORMED_MESSAGE"  # noqa: PT017 - any code but this is a bug


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
@thorough
def test_any_text_survives(name: str, options: dict[str, str]) -> None:
    """Names and options come back as they were, whatever is in them."""
    command = MESSAGES["storage command"][4]
    changed = type(command)(
        type(SOURCE)(name=name, format="csv", options=options, schema=name, key=(name,))
    )
    back = STORAGE.decode_command(STORAGE.encode_command(changed))
    assert back == changed
    assert fingerprint(back.ingestion) == fingerprint(changed.ingestion)  # type: ignore[union-attr]


# --- openings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [COMPUTE, STORAGE])
def test_an_opening_carries_a_hello(codec: Codec[Any, Any]) -> None:
    """A connection begins with its protocol, its version and its nonce."""
    data = codec.encode_opening(Hello("5f"))
    assert json.loads(data) == {
        "protocol": codec.protocol,
        "version": PROTOCOL_VERSION,
        "hello": {"type": "hello", "nonce": "5f"},
    }
    assert codec.decode_opening(data) == Hello("5f")
    codec.check_welcome(codec.encode_welcome())


def test_another_version_is_refused_with_both_told() -> None:
    """Who is older is told what to update, even where the newer one says more than is known."""
    newer = {"protocol": "compute", "version": PROTOCOL_VERSION + 1, "greeting": {"nonce": 1}}
    with pytest.raises(InvalidUsage) as refused:
        COMPUTE.decode_opening(json.dumps(newer).encode())
    assert str(refused.value) == (
        f"[PROTOCOL_VERSION] the controller speaks version {PROTOCOL_VERSION + 1}, "
        f"the runtime {PROTOCOL_VERSION} — hint: update the runtime"
    )
    older = {"protocol": "compute", "version": PROTOCOL_VERSION - 1}
    with pytest.raises(InvalidUsage, match="hint: update the runtime"):
        COMPUTE.check_welcome(json.dumps(older).encode())


def test_the_other_protocol_is_refused() -> None:
    """A storage controller at the compute address is told so."""
    with pytest.raises(InvalidUsage, match="WRONG_PROTOCOL"):
        COMPUTE.decode_opening(STORAGE.encode_opening(Hello("5f")))
    with pytest.raises(InvalidUsage, match="WRONG_PROTOCOL"):
        COMPUTE.check_welcome(STORAGE.encode_welcome())
    with pytest.raises(InvalidUsage, match="MALFORMED_MESSAGE"):
        COMPUTE.decode_opening(b'{"protocol":"compute","version":4,"hello":{"type":"hello"}}')
