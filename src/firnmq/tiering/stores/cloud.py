"""`s3://`, `gs://` and `az://` through obstore, which is used in this module only.

obstore's own time-outs do not fire on a server that has stopped, and its retries go on for minutes,
so both are always set. Its threads do not survive a fork; a store used in a forked process would
wait forever, and is refused instead.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from firnmq.config import StoreOptions
from firnmq.disk.files import Buffer
from firnmq.errors import (
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StorePackageMissing,
    StoreTimedOut,
    StoreUnavailable,
)
from firnmq.tiering.stores.api import (
    ObjectInfo,
    byte_length,
    check_key,
    check_prefix,
    check_range,
    every_key,
)
from firnmq.tiering.stores.s3_uploads import S3Access, UnfinishedUploads

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

_PART_COUNT_MAX = 9_000
"""S3 allows 10,000 parts."""

_LIST_PAGE = 1_000
"""Objects per page, the most that S3 gives."""

_MORE_NICENESS = 10
"""Under CPU contention, a tenth of the share of a thread with normal priority."""
_NICENESS_MAX = 19

_STATUS = re.compile(r"status code: (\d{3})")
_NO_BUCKET = "NoSuchBucket"
_REASON = re.compile(r"<Code>(?P<code>[^<]*)</Code>\s*<Message>(?P<message>[^<]*)</Message>")
_HTTP_TROUBLE = re.compile(r"HttpError \{\s*kind: (?P<kind>\w+),")
_RETRIES = re.compile(r"after (\d+) retries")
_OS_MESSAGE = re.compile(r'message: "([^"]*)"')
_ROLE_REQUEST = re.compile(
    r"Error performing [A-Z]+ \S+/(?:latest/(?:api/token|meta-data)|computeMetadata/)"
)
"""Parts of obstore's text; without them an error message is less specific. The last is a request
for the credentials of the machine's role, which obstore makes only if it was given no others."""
_TRY_AGAIN_STATUS = {408, 409, 425, 429}
"""Refusals that may be retried; the others from 300 to 499 may not."""


def open_cloud_store(scheme: str, bucket: str, prefix: str, options: StoreOptions) -> CloudStore:
    url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        import obstore.exceptions
    except ImportError as error:
        raise StorePackageMissing(url, "s3") from error
    client: S3Store | GCSStore | AzureStore
    uploads = None
    try:
        match scheme:
            case "s3":
                access = S3Access.of(bucket, options)
                client = _s3(access, prefix, options)
                uploads = UnfinishedUploads(access, timeout_ms=options.timeout_ms)
            case "gs":
                client = _google(bucket, prefix, options)
            case "az":
                client = _azure(bucket, prefix, options)
            case _:
                raise InvalidArgument("store", f"{scheme}:// is no cloud store")
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise InvalidArgument("store", f"{url}: {_first_line(error)}") from error
    return CloudStore(client, url, prefix, options, uploads)


@cache
def _start_threads() -> int:
    """Makes obstore start its I/O threads with a lower priority; returns this process's id.

    A thread inherits the priority of the thread that starts it, where the system has priorities of
    threads. So threads that append or serve clients get a processor first, and these still get a
    share when all are busy. They never hold the interpreter's lock, so no other thread waits for
    them. A process that is forked from this one does not have the threads.
    """
    import obstore
    from obstore.store import MemoryStore

    def start() -> None:
        if sys.platform == "linux":
            own = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, own) + _MORE_NICENESS
            os.setpriority(os.PRIO_PROCESS, own, min(niceness, _NICENESS_MAX))
        obstore.put(MemoryStore(), "any", b"")

    thread = threading.Thread(target=start, name="firn-store-start")
    thread.start()
    thread.join()
    return os.getpid()


class CloudStore:
    """An ObjectStore in a cloud or on a compatible server."""

    likes_groups = False

    def __init__(
        self,
        client: S3Store | GCSStore | AzureStore,
        url: str,
        prefix: str,
        options: StoreOptions,
        uploads: UnfinishedUploads | None,
    ) -> None:
        import obstore

        self.url = url
        self._obstore = obstore
        self._client = client
        self._prefix = prefix
        self._options = options
        self._uploads = uploads
        self._process = os.getpid()

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> ObjectInfo:
        check_key(key)
        with self._translated(key, "put"):
            result = self._obstore.put(
                self._client,
                key,
                data,
                mode="create" if if_absent else "overwrite",
                use_multipart=False,
            )
        return ObjectInfo(key, byte_length(data), result["e_tag"], time.time_ns() // 1_000_000)

    def upload(self, key: str, chunks: Iterable[Buffer], *, size: int) -> ObjectInfo:
        check_key(key)
        source = _counted(chunks, size, self.url, key)
        try:
            if size <= self._options.part_bytes:
                return self.put(key, b"".join(source), if_absent=False)
            return self._upload_parts(key, source, size)
        except _SourceFailed as failure:
            self._discard(key)
            raise failure.error from None
        except StoreError:
            self._discard(key)
            raise

    def upload_all(self, objects: Sequence[tuple[str, Buffer]]) -> None:
        for key, data in objects:
            self.upload(key, (data,), size=byte_length(data))

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        check_key(key)
        check_range(start, size)
        if size == 0:  # The protocol has no empty range.
            return b"" if self.head(key).size >= start else self._truncated(key, start, size)
        with self._translated(key, "get_range", start, size):
            data = self._obstore.get_range(self._client, key, start=start, length=size)
        if len(data) != size:
            raise ObjectTruncated(self.url, key, expected=size, found=len(data))
        return memoryview(data)

    def head(self, key: str) -> ObjectInfo:
        check_key(key)
        try:
            with self._translated(key, "head"):
                return _info(self._obstore.head(self._client, key))
        except ObjectNotFound:
            # The response to HEAD does not say whether the bucket exists.
            next(self.list(key), None)
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        prefix = check_prefix(prefix)
        with self._translated("", "list"):
            pages = self._obstore.list(self._client, prefix or None, chunk_size=_LIST_PAGE)
        while True:
            with self._translated("", "list"):
                page = next(pages, None)
            if page is None:
                return
            yield from map(_info, page)

    def delete(self, keys: Sequence[str]) -> None:
        paths = [check_key(key) for key in keys]
        if not paths:
            return
        try:
            with self._translated("", "delete"):
                self._obstore.delete(self._client, paths)
        except ObjectNotFound:
            # Stores without a bulk request stop at the first missing object.
            for path in paths:
                self._delete_one(path)

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        """S3 only: the other stores discard unfinished uploads themselves within a week."""
        prefix = check_prefix(prefix)
        if self._uploads is None or not self._uploads.is_usable:
            return 0
        parts = filter(None, (self._prefix, prefix))
        folder = "".join(f"{part}/" for part in parts)
        start = len(f"{self._prefix}/") if self._prefix else 0
        return self._uploads.discard(
            self.url, folder, before_ms=before_ms, is_meant=lambda key: is_meant(key[start:])
        )

    def close(self) -> None:
        pass

    def _upload_parts(self, key: str, source: Iterator[Buffer], size: int) -> ObjectInfo:
        with self._translated(key, "upload"):
            result = self._obstore.put(
                self._client,
                key,
                source,
                use_multipart=True,
                chunk_size=max(self._options.part_bytes, -(-size // _PART_COUNT_MAX)),
                max_concurrency=self._options.parts_in_flight,
            )
        return ObjectInfo(key, size, result["e_tag"], time.time_ns() // 1_000_000)

    def _delete_one(self, key: str) -> None:
        try:
            with self._translated(key, "delete"):
                self._obstore.delete(self._client, key)
        except ObjectNotFound:
            pass

    def _discard(self, key: str) -> None:
        """After a failed upload; if this fails too, the next sweep does it."""
        if self._uploads is None or not self._uploads.is_usable:
            return
        full = f"{self._prefix}/{key}" if self._prefix else key
        try:
            self._uploads.discard(self.url, full, is_key=True)
        except StoreError:
            pass

    def _truncated(self, key: str, start: int, size: int) -> bytes:
        found = max(0, self.head(key).size - start)
        raise ObjectTruncated(self.url, key, expected=size, found=found)

    @contextmanager
    def _translated(
        self, key: str, operation: str, start: int = 0, size: int = 0
    ) -> Iterator[None]:
        """Translates obstore's errors. Errors of the caller's chunks pass unchanged."""
        process = os.getpid()
        if process != _start_threads():  # Reopening the store would not help.
            raise StoreError(
                self.url,
                "cannot be used here: the process that this one was forked from has used a store, "
                "and its threads are not here; start processes with spawn instead of fork",
            )
        if process != self._process:
            raise StoreError(self.url, "was opened before a fork; open it again in this process")
        errors = self._obstore.exceptions
        try:
            yield
        except StoreError:
            raise
        except errors.AlreadyExistsError as error:
            raise ObjectExists(self.url, key) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise StoreDenied(self.url, _refusal(error), key=key) from error
        except FileNotFoundError as error:
            # obstore has one type for both, so only its text tells a bucket from an object.
            if not key or _NO_BUCKET in str(error):
                raise self._no_bucket() from error
            raise ObjectNotFound(self.url, key) from error
        except errors.BaseError as error:
            status = _status(error)
            if status == 404 and _NO_BUCKET in str(error):
                raise self._no_bucket() from error
            if status == 416:
                self._truncated(key, start, size)
            raise self._failure(key, operation, status, error) from error

    def _no_bucket(self) -> StoreDenied:
        return StoreDenied(self.url, "there is no such bucket; create it")

    def _failure(
        self, key: str, operation: str, status: int | None, error: Exception
    ) -> StoreError:
        is_refused = status is not None and 300 <= status < 500 and status not in _TRY_AGAIN_STATUS
        if _ROLE_REQUEST.search(str(error)) is not None:
            kind = StoreDenied if is_refused else StoreUnavailable
            return kind(self.url, _NO_CREDENTIALS[self.url.partition(":")[0]], key=key)
        if status is None and (reason := _HTTP_TROUBLE.search(str(error))) is not None:
            # Its first line says "error sending request", whatever happened.
            if reason["kind"] == "Timeout":
                retries = _RETRIES.search(str(error))
                return StoreTimedOut(
                    self.url,
                    operation,
                    self._options.timeout_ms,
                    key=key,
                    try_count=1 if retries is None else int(retries[1]) + 1,
                )
            cause = _OS_MESSAGE.search(str(error))
            what = "cannot be reached" if reason["kind"] == "Connect" else "the connection broke"
            why = what if cause is None else f"{what}: {cause[1]}"
            return StoreUnavailable(self.url, f"{operation}: {why}", key=key)
        if is_refused:
            return StoreDenied(self.url, _refusal(error), key=key)
        return StoreUnavailable(self.url, _first_line(error), key=key)


class _SourceFailed(Exception):
    """The caller's chunks ended early, late, or with an error of their own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _counted(chunks: Iterable[Buffer], size: int, url: str, key: str) -> Iterator[Buffer]:
    """The chunks, if they are `size` bytes together; what is wrong with them is told from what
    is wrong with the store.
    """
    found = 0
    try:
        for chunk in chunks:
            found += byte_length(chunk)
            if found > size:
                break
            yield chunk
    except GeneratorExit:
        raise
    except BaseException as error:
        raise _SourceFailed(error) from error
    if found != size:
        raise _SourceFailed(ObjectTruncated(url, key, expected=size, found=found))


def _s3(access: S3Access, prefix: str, options: StoreOptions) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, str] = {"region": access.region}
    if access.endpoint is not None:
        config["endpoint"] = access.endpoint
    if access.key is not None and access.secret is not None:
        config |= {"access_key_id": access.key, "secret_access_key": access.secret}
    if access.token is not None:
        config["session_token"] = access.token
    return S3Store(
        access.bucket,
        prefix=prefix or None,
        config=config,  # type: ignore[arg-type]
        client_options=_client_options(options),
        retry_config=_retries(options),
    )


def _google(bucket: str, prefix: str, options: StoreOptions) -> GCSStore:
    from obstore.store import GCSStore

    _refuse("gs", options, "region", "access_key", "session_token")
    config: dict[str, str] = {}
    if options.credentials_file is not None:
        config["service_account"] = options.credentials_file
    if options.endpoint is not None:
        config["base_url"] = options.endpoint
    return GCSStore(
        bucket,
        prefix=prefix or None,
        config=config,  # type: ignore[arg-type]
        client_options=_client_options(options),
        retry_config=_retries(options),
    )


def _azure(container: str, prefix: str, options: StoreOptions) -> AzureStore:
    from obstore.store import AzureStore

    _refuse("az", options, "region", "session_token", "credentials_file")
    config: dict[str, str] = {}
    if options.access_key is not None and options.secret_key is not None:
        config |= {"account_name": options.access_key, "account_key": options.secret_key}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    return AzureStore(
        container,
        prefix=prefix or None,
        config=config,  # type: ignore[arg-type]
        client_options=_client_options(options),
        retry_config=_retries(options),
    )


def _refuse(scheme: str, options: StoreOptions, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InvalidArgument(name, f"means nothing to {scheme}://")


def _client_options(options: StoreOptions) -> ClientConfig:
    return {
        "allow_http": options.allow_http,
        "connect_timeout": timedelta(milliseconds=options.connect_timeout_ms),
        "timeout": timedelta(milliseconds=options.timeout_ms),
    }


def _retries(options: StoreOptions) -> RetryConfig:
    return {
        "max_retries": options.retries,
        "retry_timeout": timedelta(milliseconds=options.retry_timeout_ms),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }


def _info(meta: ObjectMeta) -> ObjectInfo:
    modified_ms = int(meta["last_modified"].timestamp() * 1000)
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"], modified_ms)


def _status(error: Exception) -> int | None:
    """The HTTP status, which obstore gives only as text."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found.group(1))


_NO_CREDENTIALS = {
    "s3": "there are no credentials: set access_key and secret_key in [tiering], "
    "FIRN_TIERING_ACCESS_KEY and FIRN_TIERING_SECRET_KEY, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; this machine's role, the last resort, cannot be asked",
    "gs": "there are no credentials: set credentials_file in [tiering], "
    "FIRN_TIERING_CREDENTIALS_FILE or GOOGLE_APPLICATION_CREDENTIALS; this machine's service "
    "account, the last resort, cannot be asked",
}
"""By scheme, what to set if neither settings nor the machine have credentials."""

_REFUSALS = {
    "InvalidAccessKeyId": "the store does not know the access key: check access_key in [tiering], "
    "FIRN_TIERING_ACCESS_KEY or AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check secret_key in [tiering], "
    "FIRN_TIERING_SECRET_KEY or AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: renew AWS_SESSION_TOKEN",
    "AccessDenied": "the credentials are valid, but may not do this: change the bucket's policy",
}
"""What to do about the refusals that S3 has codes for."""


def _refusal(error: Exception) -> str:
    reason = _REASON.search(str(error).split("Debug source", 1)[0])
    advice = None if reason is None else _REFUSALS.get(reason["code"])
    return advice or _first_line(error)


def _first_line(error: Exception) -> str:
    """The useful part of obstore's text, whose rest is debug output. A store's own reason is in the
    XML document of its response."""
    text = str(error)
    line = text.split("\n", 1)[0].split("<?xml", 1)[0].rstrip(" :")
    reason = _REASON.search(text.split("Debug source", 1)[0])
    return line if reason is None else f"{line}: {reason['code']}, {reason['message']}"
