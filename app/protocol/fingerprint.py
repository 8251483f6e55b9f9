"""A fingerprint is the same exactly for descriptions that are the same definition.

    fingerprint(sink)               of all that decides which rows a sink writes, and where
    accepted_fingerprints(sink)     that, and those that earlier versions have given it

The target of a sink and the sink's accounts keep the fingerprint of the definition whose rows they
have. A sink whose fingerprint is another one is another sink: it begins anew, with all contents. So
what changes neither rows nor target is left out: a credential that is rotated or a size that is
tuned must not bring every row a second time.

Invariants:
    Fingerprints are on storage. A change of what is left out keeps the rule before it among
    `accepted_fingerprints`; a test has fingerprints of released versions.
    An option that is not known to be harmless counts: to begin anew is seen, a row that never comes
    is not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Final

import msgspec

from shardline.app.protocol.objects import Description, SinkDescription
from shardline.datasource.settings import ShardSettings

__all__ = ["accepted_fingerprints", "fingerprint"]

_PACING: Final = frozenset({"interval"})
"""Options that decide how often a sink writes."""

_CREDENTIAL: Final = re.compile(
    r"secret|password|passwd|pwd|passphrase|token|credential|jaas"
    r"|(?:access|account|private|keystore)[._-]?key",
    re.IGNORECASE,
)
"""Names of options that let a sink in, and say nothing of what it writes.

Not the rule by which secrets are hidden (`redaction`): that one grows, and a fingerprint may not
change with it.
"""

_CREDENTIAL_OF_STORE: Final = re.compile(
    r"fsspec\.(?:key|client_id)$|fs\.azure\.(?:sas\.|account\.oauth2\.client\.id(?:\.|$))"
)
"""Names of credentials, in lower case, of file systems whose plain words may mean something else in
other options. `fsspec.connection_string` is none of them: it also says which store it is."""

_FORM: Final = frozenset({"codec", "compression", "maxrecordsperfile", "mergeschema"})
"""Options of writers, in lower case, that decide how rows are stored or that new columns are taken.

What a reader of the target must know is none of them: a delimiter, a header, `partitionBy`.
"""

_FORM_OF_FILES: Final = ("orc.", "parquet.")
"""Options of the formats' own writers, such as `parquet.block.size`, begin so."""

_OF_SHARDS: Final = frozenset(
    {
        *("comment", "retainhistory"),
        *("s3.path-style", "s3.connect-timeout-ms", "s3.read-timeout-ms", "s3.pool-size"),
        *(field.name.replace("_", "") for field in dataclasses.fields(ShardSettings)),
    }
)
"""Options of `format("shard")`, in lower case, that change no row. `s3.endpoint` is none of them: a
bucket of the same name on another server is another target."""

_BROKERS: Final = "kafka.bootstrap.servers"
"""The one option for Kafka's client that decides where rows go."""


def fingerprint(description: Description) -> str:
    """Return 16 hex digits that differ if descriptions do.

    Of a sink only what decides its rows and its target counts; the module says what does not.
    """
    return accepted_fingerprints(description)[0]


def accepted_fingerprints(description: Description) -> tuple[str, ...]:
    """The fingerprint of a description, and behind it those that earlier versions gave it."""
    if not isinstance(description, SinkDescription):
        return (_digest(description),)
    sink, options = description, description.options
    known = {k: v for k, v in options.items() if _decides(sink.format, k.lower())}
    deciding = {k: v for k, v in known.items() if not _CREDENTIAL_OF_STORE.match(k.lower())}
    # Earlier versions: first only the pacing was left out, and only in lower case; then all that is
    # left out now but credentials of stores, which is `known`.
    formerly = {k: v for k, v in options.items() if k not in _PACING}
    kept = (deciding, known, formerly)
    found = [_digest(msgspec.structs.replace(sink, options=o)) for o in kept]
    return tuple(dict.fromkeys(found))


def _decides(format_: str, option: str) -> bool:
    """True if an option of a sink, in lower case, may decide its rows or its target."""
    if option in _PACING or option in _FORM or _CREDENTIAL.search(option):
        return False
    if format_ == "kafka" and option.startswith("kafka."):
        return option == _BROKERS
    if format_ == "shard":
        return option not in _OF_SHARDS
    return not option.startswith(_FORM_OF_FILES)


def _digest(description: Description) -> str:
    encoded = msgspec.json.encode(description, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()
