"""Opens a store by its URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from firnmq.config import StoreOptions
from firnmq.config.object_store import SCHEMES
from firnmq.errors import InvalidArgument
from firnmq.tiering.stores.api import ObjectStore, check_prefix


def open_store(
    url: str, options: StoreOptions | None = None, *, creates: bool = True
) -> ObjectStore:
    """The store at a URL. No request is made yet; a `file://` directory is created if `creates`.

    file:///directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix,
    hdfs://namenode:port/directory.
    """
    options = options or StoreOptions()
    parts = urlsplit(url)
    _require_plain(url, parts)
    match parts.scheme:
        case "file":
            from firnmq.tiering.stores.local import LocalStore

            if parts.netloc or not parts.path.startswith("/") or parts.path.strip("/") == "":
                raise InvalidArgument("store", f"{url!r} has no directory: file:///path/to/it")
            return LocalStore(Path(unquote(parts.path)), creates=creates)
        case "s3" | "gs" | "az":
            from firnmq.tiering.stores.cloud import open_cloud_store

            if not parts.netloc:
                raise InvalidArgument("store", f"{url!r} names no bucket: {parts.scheme}://bucket")
            prefix = check_prefix(parts.path.strip("/"))
            return open_cloud_store(parts.scheme, parts.netloc, prefix, options)
        case "hdfs":
            from firnmq.tiering.stores.hdfs import HdfsStore

            if not parts.netloc:
                raise InvalidArgument("store", f"{url!r} names no host: hdfs://namenode:8020/path")
            return HdfsStore(parts.netloc, check_prefix(parts.path.strip("/")), options)
        case _:
            raise InvalidArgument(
                "store", f"{url!r} is none of {', '.join(f'{each}://' for each in SCHEMES)}"
            )


def _require_plain(url: str, parts: SplitResult) -> None:
    """No credentials in URLs: they end up in logs, process lists and metadata."""
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("store", "a URL with credentials in it; give them as settings")
    if parts.query or parts.fragment:
        raise InvalidArgument("store", f"{url!r} has a query or fragment, which mean nothing here")
