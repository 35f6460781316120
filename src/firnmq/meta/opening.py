"""Opens the meta store that the configuration names."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.clock import Clock
from firnmq.config import MetaConfig
from firnmq.errors import InvalidArgument, StorageFailed, TimedOut
from firnmq.eventlog import EventLogger
from firnmq.meta.api import MetaStore
from firnmq.meta.sqlite import SqliteMetaStore

if TYPE_CHECKING:
    from firnmq.meta.etcd import EtcdMetaStore, EtcdSettings

_PAUSE_S = 0.2
_log = EventLogger("meta")


def open_meta_store(
    config: MetaConfig,
    path: Path,
    *,
    clock: Clock | None = None,
    is_shared: bool = False,
    is_stopping: Callable[[], bool] = lambda: False,
) -> MetaStore:
    """etcd if the configuration has endpoints, else the SQLite file at `path`.

    Waits for etcd, which may be starting as well; TimedOut if it does not answer in time.
    """
    if not config.endpoints:
        return SqliteMetaStore(path, clock=clock, is_shared=is_shared)
    return open_etcd(config, is_stopping=is_stopping)


def open_etcd(
    config: MetaConfig, *, is_stopping: Callable[[], bool] = lambda: False
) -> EtcdMetaStore:
    """etcd at the configuration's endpoints, which answers reads."""
    store = etcd_store(config)
    deadline = time.monotonic() + config.start_timeout_ms / 1000
    try:
        while True:
            try:
                store.get("ready")  # Needs a majority, like every read.
                break
            except (TimedOut, StorageFailed) as error:
                if time.monotonic() >= deadline or is_stopping():
                    raise
                _log.warning("meta_waits", waits_for="etcd", because=error)
                time.sleep(_PAUSE_S)
    except BaseException:
        store.close()
        raise
    _log.info("meta_store", kind="etcd", endpoints=",".join(config.endpoints))
    return store


def etcd_store(config: MetaConfig) -> EtcdMetaStore:
    """etcd at the configuration's endpoints, whether it answers or not."""
    settings = etcd_settings(config)
    from firnmq.meta.etcd import EtcdMetaStore

    return EtcdMetaStore(settings, prefix=f"{config.cluster}/")


def etcd_settings(config: MetaConfig) -> EtcdSettings:
    """The configuration as etcd's client takes it."""
    try:
        from firnmq.meta.etcd import EtcdSettings
    except ImportError as error:
        raise InvalidArgument(
            "meta.endpoints", f"{error.name} is not installed: pip install 'firnmq[etcd]'"
        ) from error
    return EtcdSettings(
        endpoints=config.endpoints,
        ca_file=config.ca_file,
        certificate_file=config.certificate_file,
        key_file=config.key_file,
        user=config.user,
        password=config.secret(),
        call_s=config.call_timeout_ms / 1000,
    )
