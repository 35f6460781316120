"""Where tables are: the catalog, and the store with their files. Needs `firnmq[lake]`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from firnmq.disk.directory import make_directories
from firnmq.errors import FirnError, InvalidArgument
from firnmq.lake.plans.plan import TablePlace, is_rest
from firnmq.lake.plans.stores import access_keys
from firnmq.tiering.stores import ObjectStore, StoreOptions, open_store

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

CATALOG_NAME: Final = "firn"
"""A column of the embedded catalog: all processes that open the file must give the same name."""

TOPICS: Final = "topics"
DEAD_LETTERS: Final = "dead_letters"
"""Namespaces: a topic's table has the topic's name in the one and, if it has a schema, a table of
the records that do not fit it in the other."""

_BUSY_S: Final = 30
"""How long a commit waits for another process that is writing to the same SQLite file."""
_OPEN_ATTEMPTS: Final = 5
_OPEN_WAIT_S: Final = 0.2
_NESTED: Final = ("ssl.", "auth.")
"""Properties that PyIceberg wants as mappings: `ssl.cabundle` is the `cabundle` of `ssl`."""

T = TypeVar("T")


class CatalogFailed(FirnError):
    """The catalog cannot be opened or asked."""

    def __init__(self, catalog: str, reason: object, *, is_passing: bool = True) -> None:
        super().__init__(f"catalog {catalog}: {' '.join(str(reason).split())}")
        self.catalog = catalog
        self.is_passing = is_passing
        """Whether it may work later: there was no answer, rather than a refusal."""


def table_name(topic: str) -> str:
    """What a topic's table is called: dots would be namespaces."""
    return topic.replace(".", "_")


def warehouse_store(location: str, options: Mapping[str, str]) -> ObjectStore:
    """The store below a table's location, for its files."""
    return open_store(location, _store_options(location, options))


def _store_options(location: str, options: Mapping[str, str]) -> StoreOptions:
    """Options named `warehouse.access_key` count before those named `store.access_key`."""
    access_key, secret_key = access_keys(location, options, "warehouse", "store")
    return StoreOptions(
        endpoint=_option(options, "endpoint"),
        region=_option(options, "region"),
        access_key=access_key,
        secret_key=secret_key,
        session_token=_option(options, "session_token"),
        credentials_file=_option(options, "credentials_file"),
        allow_http=(_option(options, "allow_http") or "").lower() == "true",
    )


def _option(options: Mapping[str, str], name: str) -> str | None:
    return options.get(f"warehouse.{name}", options.get(f"store.{name}"))


class OpenCatalog(AbstractContextManager["OpenCatalog"]):
    """An Iceberg catalog, with our namespaces in it, until it is closed."""

    def __init__(self, place: TablePlace, options: Mapping[str, str]) -> None:
        self.place = place
        self.options = dict(options)
        self.iceberg: Catalog = _with_retries(place.catalog, lambda: _opened(place, options))

    @property
    def is_rest(self) -> bool:
        return is_rest(self.place.catalog)

    def close(self) -> None:
        engine = getattr(self.iceberg, "engine", None)
        if engine is not None:
            engine.dispose()
        if self.is_rest:
            self.iceberg.close()

    def asking(self) -> AbstractContextManager[None]:
        """Inside, what the catalog's client raises for want of an answer is CatalogFailed."""
        return _asking(self.place.catalog)

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_namespace(self, name: str) -> None:
        _with_retries(
            self.place.catalog, lambda: self.iceberg.create_namespace_if_not_exists((name,))
        )


def _opened(place: TablePlace, options: Mapping[str, str]) -> Catalog:
    if is_rest(place.catalog):
        return _opened_rest(place, options)
    if not place.catalog.startswith("sqlite:///"):
        raise InvalidArgument(
            "catalog",
            f"{place.catalog!r} is neither sqlite:////path/catalog.db nor an http(s) address",
        )
    from pyiceberg.catalog.sql import SqlCatalog

    make_directories(Path(place.catalog.removeprefix("sqlite:///")).resolve().parent)
    properties = _properties(place, options)
    return SqlCatalog(CATALOG_NAME, uri=f"{place.catalog}?timeout={_BUSY_S}", **properties)


def _opened_rest(place: TablePlace, options: Mapping[str, str]) -> Catalog:
    """PyIceberg's own files and variables count too (`PYICEBERG_CATALOG__FIRN__TOKEN`), so that a
    secret need not be on a command line; options come first."""
    from pyiceberg.utils.config import Config

    from firnmq.lake.tables.catalogs.rest import PunctualRestCatalog

    if "@" in urlsplit(place.catalog).netloc:
        raise InvalidArgument(
            "catalog",
            "its address says who asks, which would be shown; give the options "
            "catalog.token, or catalog.credential, or catalog.auth.type=basic with "
            "catalog.auth.basic.username and catalog.auth.basic.password",
        )
    known: dict[str, Any] = dict(Config().get_catalog_config(CATALOG_NAME) or {})
    given = _nested(_properties(place, options))
    return PunctualRestCatalog(CATALOG_NAME, **{**known, **given, "uri": place.catalog})


def _properties(place: TablePlace, options: Mapping[str, str]) -> dict[str, str]:
    return {
        "py-io-impl": "firnmq.lake.tables.catalogs.metadata_files.DurableFileIO",
        **({"warehouse": place.warehouse} if place.warehouse else {}),
        **_io_properties(options),
        **{
            name.removeprefix("catalog."): value
            for name, value in options.items()
            if name.startswith("catalog.")
        },
    }


def _nested(properties: Mapping[str, str]) -> dict[str, Any]:
    """`auth.basic.username` as PyIceberg's files have it: a mapping in a mapping."""
    found: dict[str, Any] = {}
    for name, value in properties.items():
        parts = name.split(".") if name.startswith(_NESTED) else [name]
        *path, last = parts
        inner = found
        for each in path:
            inner = inner.setdefault(each, {})
        inner[last] = value
    return found


def _io_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The store's options as PyIceberg names them."""
    names = {
        "endpoint": "s3.endpoint",
        "region": "s3.region",
        "access_key": "s3.access-key-id",
        "secret_key": "s3.secret-access-key",
        "session_token": "s3.session-token",
    }
    found = {theirs: _option(options, ours) for ours, theirs in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _with_retries(catalog: str, work: Callable[[], T]) -> T:
    """Retries: two processes that both find an empty file create its tables; one of them fails."""
    for attempt in range(_OPEN_ATTEMPTS):
        try:
            with _asking(catalog):
                return work()
        except CatalogFailed as error:
            if attempt == _OPEN_ATTEMPTS - 1 or not error.is_passing:
                raise
        except OSError as error:
            if attempt == _OPEN_ATTEMPTS - 1:
                raise CatalogFailed(catalog, error) from error
        time.sleep(_OPEN_WAIT_S)
    raise AssertionError("unreachable")


@contextmanager
def _asking(catalog: str) -> Iterator[None]:
    """Translates failures of the catalog; its answers (no such table, conflict) pass unchanged."""
    from sqlalchemy.exc import SQLAlchemyError

    if is_rest(catalog):
        from firnmq.lake.tables.catalogs.rest import answered

        with answered(catalog):
            yield
        return
    try:
        yield
    except SQLAlchemyError as error:
        raise CatalogFailed(catalog, error) from error
