"""Stores objects in an S3 bucket below a prefix, through s3fs: `s3://bucket/prefix`.

s3fs is made for reading files; a commit needs to know what one request did. So only this module
uses s3fs, and it changes or replaces some of its behaviour:

- an outcome is decided by the HTTP status inside of an exception, never by the exception's class:
  servers word the same refusal differently, and time-outs are no OSError;
- retries are off in all three layers (s3fs, botocore, and aiohttp, which sends again once if the
  connection is dropped): they turn one lost response into "exists" about our own object, or into
  the refusal of a repetition whose original took effect, and a dead endpoint into 40 seconds.
  Proxies and ingresses on the way repeat requests as well, so no answer to a create but success
  proves anything by itself, whatever its status;
- the listing cache is off: it hides what others have written;
- every value is sent in one request, because the multi-part path loses conditions;
- a key is absent only if S3 says so (`NoSuchKey`): an ingress that has no backend for a moment, as
  in a roll-out, answers 404 as well, and believed, it would make records and parts look lost;
- instances belong to one process: after a fork a new one is made.

Invariants:
    a value that was cut short on its way is an error, never a short value;
    every request has a deadline: time to connect, twice the longest silence, and its value at
    `_SLOWEST_BYTES_PER_S`. The client's own time-outs only limit silence, so a server that sends a
    byte now and then would block a reader for ever.
"""

from __future__ import annotations

import asyncio
import functools
import os
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn

import aiobotocore.session  # type: ignore[import-untyped]
import botocore.exceptions as aws  # type: ignore[import-untyped]
import botocore.loaders  # type: ignore[import-untyped]
import fsspec.asyn
import s3fs
from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]
from typing_extensions import override

from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.stores.location import BlobEntry
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome, Objects, Unresolved
from shardline.datasource.stores.ranged import open_ranged

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.stores.options import S3Options

__all__ = ["S3Objects"]

_PAGE_MAX: Final = 1000
_CONCURRENCY: Final = 64
_SLOWEST_BYTES_PER_S: Final = 256 << 10
_RETRYABLE: Final = {404, 408, 409, 425, 429}
_DENIED: Final = (
    "ACCESS_DENIED",
    "check the credentials, and that they may get, put, delete and list there",
)
_WRONG_REGION: Final = ("WRONG_REGION", "set s3.region to the bucket's region")
_REFUSALS: Final = {
    301: _WRONG_REGION,
    307: _WRONG_REGION,
    401: _DENIED,
    403: _DENIED,
}
_REFUSALS_BY_CODE: Final = {
    "ExpiredToken": _DENIED,
    "InvalidObjectState": (
        "OBJECT_ARCHIVED",
        "a lifecycle rule archived it: copy it back to a class that is read at once, end the rule",
    ),
    "NoSuchBucket": (
        "BUCKET_NOT_FOUND",
        "create the bucket, or check its name, s3.endpoint and s3.region",
    ),
}
_TRANSIENT: Final = {"RequestTimeout", "IncompleteBody", "BadDigest"}
_UNSENT: Final = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.ParamValidationError,
    aws.NoRegionError,
)
"""Errors raised before a request is sent. As retries are off, no earlier attempt was sent either,
so a create that fails with one of them certainly did not happen."""


class _TruncatedError(Exception):
    """A response ended before its announced length."""


class S3Objects(Objects):
    """Objects of `bucket` whose keys begin with `prefix`.

    Args:
        bucket: Name of the bucket; it must exist.
        prefix: Empty, or ends in `/`.
        options: How to reach it.
    """

    def __init__(self, bucket: str, prefix: str, options: S3Options) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = prefix
        self._options = options
        self._session: tuple[int, Any] | None = None
        self._date, self._latest_ms = "", 0.0

    @override
    def latest_ms(self) -> float:
        return self._latest_ms

    # ----------------------------------------------------------------------------------- write

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        try:
            self._call("put_object", key, Body=value, IfNoneMatch="*")
        except Exception as error:
            status, code = _status(error)
            if status == HTTPStatus.PRECONDITION_FAILED:
                return EXISTS
            if status == HTTPStatus.CONFLICT:
                return Unresolved("a concurrent request for the same key (409)")
            if status == HTTPStatus.NOT_IMPLEMENTED:
                refusal: InvalidUsage | None = InvalidUsage(
                    f"the store at '{self.url}' does not implement conditional writes ({code})",
                    code="STORE_NOT_ATOMIC",
                    hint="commits need PUT with If-None-Match",
                )
            else:
                refusal = self._refusal(f"cannot create '{key}' at '{self.url}'", error)
            if refusal is not None and isinstance(error, _UNSENT):
                raise refusal from error
            return Unresolved(_reason(error), refusal)
        return CREATED

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        try:
            self._call("put_object", key, Body=bytes(value))
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            self._raise(f"write '{key}'", error, Indeterminate)

    @override
    def delete(self, key: str) -> bool:
        if self._size(key) is None:
            return False
        self.delete_many([key])
        return True

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        async def delete(key: str) -> None:
            try:
                await self._request("delete_object", key)
            except Exception as error:
                if not _says_absent(error):
                    raise

        try:
            self._gather(delete, keys)
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            self._raise("delete", error, Indeterminate)

    @override
    def settle(self, directory: str) -> None:
        pass

    # ------------------------------------------------------------------------------------ read

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        if end is not None and end <= start:
            return None if self._size(key) is None else b""
        bounds = {}
        if start or end is not None:
            bounds["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            value: bytes | None = self._run(self._fetch, key, **bounds)
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            if _status(error)[0] == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b""
            self._raise(f"read '{key}'", error)
        return value

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        try:
            return self._gather(self._fetch, keys)
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            self._raise(f"read '{keys[0]}' and {len(keys) - 1} more", error)

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        size = self._size(key) if size_bytes is None else size_bytes
        return None if size is None else open_ranged(via or self, key, size)

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        after, left = start_after, limit
        while left is None or left > 0:
            size = _PAGE_MAX if left is None else min(left, _PAGE_MAX)
            page = self._list(prefix, after, MaxKeys=size)
            for item in page.get("Contents", ()):
                key = item["Key"][len(self._prefix) :]
                # Some servers list the key of StartAfter itself as well.
                if key > after and (left is None or left > 0):
                    yield BlobEntry(key, item["Size"], _milliseconds(item["LastModified"]))
                    left = None if left is None else left - 1
                    after = key
            if not page.get("IsTruncated"):
                return

    @override
    def directories(self) -> list[str]:
        names: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = self._list("", "", Delimiter="/", **more)
            found = page.get("CommonPrefixes", ())
            names.extend(item["Prefix"][len(self._prefix) : -1] for item in found)
            if not page.get("IsTruncated"):
                return sorted(names)
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _list(self, prefix: str, start_after: str, **arguments: Any) -> dict[str, Any]:
        if start_after:
            arguments["StartAfter"] = self._prefix + start_after
        arguments["Prefix"] = self._prefix + prefix
        try:
            page: dict[str, Any] = self._call("list_objects_v2", None, **arguments)
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            self._raise(f"list '{prefix}'", error)
        return page

    def _size(self, key: str) -> int | None:
        try:
            size: int = self._call("head_object", key)["ContentLength"]
        except Exception as error:  # noqa: BLE001 - time-outs are of no common class
            # An answer to HEAD has no body that would tell S3's own 404 from that of an ingress.
            if _status(error)[0] == HTTPStatus.NOT_FOUND and self.get(key, 0, 1) is None:
                return None
            self._raise(f"look at '{key}'", error)
        return size

    # --------------------------------------------------------------------------------- requests

    def _call(self, method: str, key: str | None, **arguments: Any) -> Any:
        return self._run(self._request, method, key, **arguments)

    async def _request(self, method: str, key: str | None, **arguments: Any) -> Any:
        if key is not None:
            arguments["Key"] = self._prefix + key
        # The client's own time-outs do not cover all of its waiting: for "100 Continue" it waits
        # without end.
        async with asyncio.timeout(self._deadline_s(len(arguments.get("Body", b"")))):
            try:
                response = await self._fs()._call_s3(method, Bucket=self._bucket, **arguments)  # noqa: SLF001
            except Exception as error:
                # A refusal and "not found" tell the time as well: that something is absent must not
                # be believed for longer than that it is there.
                self._note_date(_response(error))
                raise
        self._note_date(response)
        return response

    def _note_date(self, response: Any) -> None:
        """Note the time that the server gives with a response."""
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        date = headers.get("date", "")
        if date in {"", self._date}:
            return
        with suppress(ValueError):
            self._latest_ms = max(self._latest_ms, _milliseconds(parsedate_to_datetime(date)))
        self._date = date

    def _deadline_s(self, size_bytes: int) -> float:
        """Longest duration of a request that sends or receives `size_bytes`, in seconds."""
        options = self._options
        waiting_s = (options.connect_timeout_ms + 2 * options.read_timeout_ms) / 1000
        return waiting_s + size_bytes / _SLOWEST_BYTES_PER_S

    async def _fetch(self, key: str, **bounds: str) -> bytes | None:
        try:
            response = await self._request("get_object", key, **bounds)
        except Exception as error:
            if _says_absent(error):
                return None
            raise
        patience_s = self._deadline_s(response["ContentLength"])
        async with asyncio.timeout(patience_s), response["Body"] as body:
            value: bytes = await body.read()
        if len(value) != response["ContentLength"]:
            raise _TruncatedError(f"{len(value)} of {response['ContentLength']} bytes arrived")
        return value

    def _gather(
        self, request: Callable[[str], Coroutine[Any, Any, Any]], keys: Sequence[str]
    ) -> list[Any]:
        limit = asyncio.Semaphore(_CONCURRENCY)

        async def one(key: str) -> Any:
            async with limit:
                return await request(key)

        async def every() -> list[Any]:
            return await asyncio.gather(*(one(key) for key in keys))

        results: list[Any] = self._run(every) if keys else []
        return results

    def _run(
        self, request: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        return fsspec.asyn.sync(self._fs().loop, request, *args, **kwargs)

    def _fs(self) -> Any:
        process = os.getpid()
        if self._session is None or self._session[0] != process:
            self._session = (process, _connect(self._options))
        return self._session[1]

    # ----------------------------------------------------------------------------------- errors

    def _raise(
        self, what: str, error: Exception, otherwise: type[ShardError] = Determinate
    ) -> NoReturn:
        what = f"cannot {what} at '{self.url}'"
        refusal = self._refusal(what, error)
        if refusal is not None:
            raise refusal from error
        status, _ = _status(error)
        hint = _unreachable_hint(self._options) if status is None else "retry later"
        if status == HTTPStatus.NOT_FOUND:
            hint = "retry later; if it lasts, check s3.endpoint: what answers there is not S3"
        raise otherwise(f"{what}: {_reason(error)}", code="STORE_UNAVAILABLE", hint=hint) from error

    def _refusal(self, what: str, error: Exception) -> InvalidUsage | None:
        """The error for the user if `error` has a permanent cause; None if a retry may help."""
        diagnosis = _diagnose(error)
        if diagnosis is None:
            return None
        code, hint = diagnosis
        return InvalidUsage(f"{what}: {_reason(error)}", code=code, hint=hint)


def _diagnose(error: Exception) -> tuple[str, str] | None:
    """The code and hint for an error that the user must fix; None if a retry may help."""
    status, code = _status(error)
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError):
        return "NO_CREDENTIALS", (
            "set s3.access-key-id and s3.secret-access-key, or AWS_ACCESS_KEY_ID, AWS_PROFILE or "
            "an instance role"
        )
    if isinstance(error, aws.ParamValidationError | aws.NoRegionError | ValueError):
        return (
            "INVALID_LOCATION",
            "check the bucket's name, s3.region, and that s3.endpoint is a URL",
        )
    if code in _REFUSALS_BY_CODE:
        return _REFUSALS_BY_CODE[code]
    if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    if status in _RETRYABLE or code in _TRANSIENT:
        return None
    return _REFUSALS.get(status, ("REQUEST_REFUSED", "the server does not speak S3 as used here"))


class _SendingOnce(AIOHTTPSession):  # type: ignore[misc]
    """Sends each request once.

    aiohttp repeats an idempotent request if its connection is closed before the answer, and regards
    every PUT as idempotent. A conditional PUT is not.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False  # noqa: SLF001 - no public door
        return session


@functools.cache
def _load_service_models() -> Any:
    # Reading the description of S3 takes 0.1 s; it is the same for every client.
    return botocore.loaders.create_loader()


def _connect(options: S3Options) -> Any:
    session = aiobotocore.session.AioSession()
    session.register_component("data_loader", _load_service_models())
    style = {"addressing_style": "path"} if options.path_style else {}
    fs = s3fs.S3FileSystem(
        session=session,
        key=options.access_key_id,
        secret=options.secret_access_key,
        token=options.session_token,
        endpoint_url=options.endpoint,
        client_kwargs={"region_name": options.region} if options.region else {},
        config_kwargs={
            "s3": style,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "http_session_cls": _SendingOnce,
            "connect_timeout": options.connect_timeout_ms / 1000,
            "read_timeout": options.read_timeout_ms / 1000,
            "max_pool_connections": options.pool_size,
            # Entries and parts carry checksums of their own; older servers refuse the default ones.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    fs.retries = 1
    return fs


def _status(error: BaseException) -> tuple[int | None, str]:
    """HTTP status and S3 error code inside of an exception; else None and the class's name."""
    response = _response(error)
    if not response:
        return None, type(error).__name__
    status = response["ResponseMetadata"].get("HTTPStatusCode")
    return status, str(response.get("Error", {}).get("Code", status))


def _says_absent(error: Exception) -> bool:
    """True if S3 itself, and nobody on the way, has answered that there is no such key."""
    return _status(error) == (HTTPStatus.NOT_FOUND, "NoSuchKey")


def _response(error: BaseException) -> dict[str, Any]:
    """The server's response inside of an exception; empty if there was none."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict) and "ResponseMetadata" in response:
            return response
        cause = cause.__cause__
    return {}


def _reason(error: Exception) -> str:
    # Never the text of the error: a server may repeat the request's headers in it.
    status, code = _status(error)
    if status is not None:
        return f"{code} ({status})"
    return str(error) if isinstance(error, _TruncatedError) else code


def _unreachable_hint(options: S3Options) -> str:
    if options.endpoint is None:
        return "check the network; for a server other than AWS set s3.endpoint"
    return f"check that '{options.endpoint}' is up and reachable"


def _milliseconds(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
