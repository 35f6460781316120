"""The configuration of the tables of a node's topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from firnmq.config.sections import Settings
from firnmq.errors import InvalidArgument

_DIRECTORY = "lake"


class LakeTopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a sync converts one topic, `[lake.topics.NAME]`; for `firn lake sync`, not for nodes.

    A struct and not a dataclass, since it is a value within a section.
    """

    schema: str | None = None
    """File with a JSON Schema or an Avro schema, beside the TOML file if its path is relative:
    values become columns, and those that do not fit dead letters. None: values stay bytes."""
    schema_kind: str = "json"
    """`json`, `avro`, or `avro-confluent` for Avro after five bytes with a schema's number."""
    writers: dict[int, str] = {}
    """avro-confluent: files of the schemas that values were written with, by number. Empty: all
    are written with `schema`."""
    partition: str | None = None
    """`day` or `hour` of the timestamp, for a table that is made. None: `day`."""

    def __post_init__(self) -> None:
        if self.partition not in (None, "day", "hour"):
            raise ValueError(f"partition {self.partition!r} is neither day nor hour")
        if self.schema_kind not in _SCHEMA_KINDS:
            raise ValueError(f"schema_kind {self.schema_kind!r} is none of {_SCHEMA_KINDS}")
        if self.writers and (self.schema is None or self.schema_kind != "avro-confluent"):
            raise ValueError("writers need a schema with schema_kind avro-confluent")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """Where the Iceberg tables of topics are. The node itself never reads or writes them; it tells
    those who do."""

    catalog: str | None = None
    """`sqlite:////path/catalog.db`, or the http(s) address of a REST catalog. None:
    `lake/catalog.db` in the data directory."""
    warehouse: str | None = None
    """URL of the folder that holds the tables, file:// or s3://. None: `lake/warehouse` in the data
    directory. With a REST catalog, what that calls one of its warehouses; None: the one it has."""
    topics: Mapping[str, LakeTopicConfig] = field(default_factory=dict)
    """How syncs convert topics, by name."""

    def __post_init__(self) -> None:
        if self.catalog is not None and not self.catalog.startswith(_CATALOGS):
            raise InvalidArgument(
                "lake.catalog", f"{self.catalog!r} begins with none of {', '.join(_CATALOGS)}"
            )
        if "@" in urlsplit(self.catalog or "").netloc:
            raise InvalidArgument(
                "lake.catalog", "says who asks, and nodes show it; that is for those who ask to say"
            )
        if not self._is_rest and self.warehouse is not None and "://" not in self.warehouse:
            raise InvalidArgument("lake.warehouse", f"{self.warehouse!r} is not like s3://bucket/x")

    @property
    def _is_rest(self) -> bool:
        return (self.catalog or "").startswith(_CATALOGS[1:])

    def catalog_in(self, directory: Path) -> str:
        """The catalog of a data directory."""
        return self.catalog or f"sqlite:///{directory.absolute() / _DIRECTORY / 'catalog.db'}"

    def warehouse_in(self, directory: Path) -> str:
        """The warehouse of a data directory; empty if it is the catalog's to say."""
        if self._is_rest:
            return self.warehouse or ""
        return self.warehouse or (directory.absolute() / _DIRECTORY / "warehouse").as_uri()


_CATALOGS = ("sqlite:///", "http://", "https://")
_SCHEMA_KINDS = ("json", "avro", "avro-confluent")


def load_lake_config(
    environment: Mapping[str, str] | None = None, *, path: Path | None = None
) -> LakeConfig:
    """Defaults, overlaid by the section of a node's file, overlaid by FIRN_LAKE_* variables."""
    return Settings(path, environment).section("lake", LakeConfig, prefix="LAKE_")
