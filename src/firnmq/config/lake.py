"""What a node can be told about the tables of its topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firnmq.errors import InvalidArgument

_DIRECTORY = "lake"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """Where the Iceberg tables of topics are. The node itself never reads or writes them; it tells
    those who do."""

    catalog: str | None = None
    """`sqlite:////path/catalog.db`, or the http(s) address of a REST catalog. None:
    `lake/catalog.db` in the data directory."""
    warehouse: str | None = None
    """URL of the folder that holds the tables, file:// or s3://. None: `lake/warehouse` in the data
    directory."""

    def __post_init__(self) -> None:
        if self.catalog is not None and not self.catalog.startswith(_CATALOGS):
            raise InvalidArgument(
                "lake.catalog", f"{self.catalog!r} begins with none of {', '.join(_CATALOGS)}"
            )
        if self.warehouse is not None and "://" not in self.warehouse:
            raise InvalidArgument("lake.warehouse", f"{self.warehouse!r} is not like s3://bucket/x")

    def catalog_in(self, directory: Path) -> str:
        """The catalog of a data directory."""
        return self.catalog or f"sqlite:///{directory.absolute() / _DIRECTORY / 'catalog.db'}"

    def warehouse_in(self, directory: Path) -> str:
        """The warehouse of a data directory."""
        return self.warehouse or (directory.absolute() / _DIRECTORY / "warehouse").as_uri()


_CATALOGS = ("sqlite:///", "http://", "https://")
