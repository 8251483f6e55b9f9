"""The codec turns commands and responses into JSON and back, for connections over a socket.

    COMPUTE.encode_command(Schedule("delays"))      b'{"type":"schedule","id":"delays"}'
    COMPUTE.decode_command(data)                    the value, or InvalidUsage

One message is one JSON object with its `type`. Times are numbers, an empty frontier is null, unset
fields are left out, bytes are base64. The first message of a connection is an *opening* with a
`Hello`, and the protocol and version of the rest; the answer to it, the welcome, is the same
without a `Hello`:

    {"protocol":"compute","version":4,"hello":{"type":"hello","nonce":"…"}}
    {"protocol":"compute","version":4}

Invariants:
    Decoding what was encoded gives an equal value; the golden files keep each of them readable, in
    the form of every version.
    Nothing is skipped: an unknown type, an unknown or missing field, a number for a string are
    refused, and the error names the place. So the version is raised whenever anything is added.
    Only the first message may be of another version; it is refused, and the error names both.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from shardline.app.protocol.compute import ComputeCommand, ComputeResponse, Hello
from shardline.app.protocol.objects import ProtocolValue
from shardline.app.protocol.storage import StorageCommand, StorageResponse
from shardline.datasource.errors import InvalidUsage

__all__ = ["COMPUTE", "PROTOCOL_VERSION", "STORAGE", "Codec"]

PROTOCOL_VERSION: Final = 4
"""Version of both protocols; raised with every change of a message."""

Command = TypeVar("Command")
Response = TypeVar("Response")
T = TypeVar("T")


class _Version(msgspec.Struct, frozen=True):
    """The fields that an opening of any version has, past or future; others are ignored here."""

    protocol: str
    version: int


class _Opening(ProtocolValue, frozen=True):
    protocol: str
    version: int
    hello: Hello


class _Welcome(ProtocolValue, frozen=True):
    protocol: str
    version: int


class Codec(Generic[Command, Response]):
    """The codec of one protocol; for any number of threads.

    Attributes:
        protocol: Its name: "compute" or "storage".
    """

    def __init__(self, protocol: str, command: Any, response: Any) -> None:
        """Make a codec; `command` and `response` are the unions of the protocol."""
        self.protocol = protocol
        self._encoder = msgspec.json.Encoder(order="deterministic")
        self._command: msgspec.json.Decoder[Any] = msgspec.json.Decoder(command)
        self._response: msgspec.json.Decoder[Any] = msgspec.json.Decoder(response)

    def encode_command(self, command: Command) -> bytes:
        """Encode a command as one message."""
        return self._encoder.encode(command)

    def encode_response(self, response: Response) -> bytes:
        """Encode a response as one message."""
        return self._encoder.encode(response)

    def decode_command(self, data: bytes) -> Command:
        """Decode one message as a command.

        Raises:
            InvalidUsage: With code MALFORMED_MESSAGE.
        """
        command: Command = self._decoded(self._command, data, "command")
        return command

    def decode_response(self, data: bytes) -> Response:
        """Decode one message as a response.

        Raises:
            InvalidUsage: With code MALFORMED_MESSAGE.
        """
        response: Response = self._decoded(self._response, data, "response")
        return response

    def encode_opening(self, hello: Hello) -> bytes:
        """Encode the first message of a controller."""
        return self._encoder.encode(_Opening(self.protocol, PROTOCOL_VERSION, hello))

    def decode_opening(self, data: bytes) -> Hello:
        """Decode a controller's first message, and return its `Hello`.

        Raises:
            InvalidUsage: With code PROTOCOL_VERSION for another version, WRONG_PROTOCOL for another
                protocol, MALFORMED_MESSAGE for anything else.
        """
        self._check_version(data, peer="controller", here="runtime")
        return self._decoded(_OPENING, data, "opening").hello

    def encode_welcome(self) -> bytes:
        """Encode the runtime's answer to an opening."""
        return self._encoder.encode(_Welcome(self.protocol, PROTOCOL_VERSION))

    def check_welcome(self, data: bytes) -> None:
        """Check the runtime's answer to an opening.

        Raises:
            InvalidUsage: As of `decode_opening`.
        """
        self._check_version(data, peer="runtime", here="controller")
        self._decoded(_WELCOME, data, "answer to an opening")

    def _check_version(self, data: bytes, peer: str, here: str) -> None:
        # Before the whole message is decoded: one of another version may have other fields, and
        # "unknown field" would hide the reason.
        said = self._decoded(_VERSION, data, "opening")
        if said.protocol != self.protocol:
            raise InvalidUsage(
                f"the {peer} speaks the {said.protocol} protocol, the {here} {self.protocol}",
                code="WRONG_PROTOCOL",
                hint="check the address",
            )
        if said.version != PROTOCOL_VERSION:
            older = peer if said.version < PROTOCOL_VERSION else here
            raise InvalidUsage(
                f"the {peer} speaks version {said.version}, the {here} {PROTOCOL_VERSION}",
                code="PROTOCOL_VERSION",
                hint=f"update the {older}",
            )

    def _decoded(self, decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidUsage(
                f"this is no {what} of the {self.protocol} protocol: {error}",
                code="MALFORMED_MESSAGE",
            ) from error


_VERSION: Final = msgspec.json.Decoder(_Version)
_OPENING: Final = msgspec.json.Decoder(_Opening)
_WELCOME: Final = msgspec.json.Decoder(_Welcome)

COMPUTE: Final[Codec[ComputeCommand, ComputeResponse]] = Codec(
    "compute", ComputeCommand, ComputeResponse
)
STORAGE: Final[Codec[StorageCommand, StorageResponse]] = Codec(
    "storage", StorageCommand, StorageResponse
)
