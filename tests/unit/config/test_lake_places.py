"""Where the tables of topics are."""

from pathlib import Path

import pytest

from firnmq.config import LakeConfig
from firnmq.errors import InvalidArgument
from firnmq.server.settings import load_node_config


def test_tables_are_in_the_data_directory_unless_told_otherwise(tmp_path: Path) -> None:
    config = LakeConfig()
    assert config.catalog_in(tmp_path) == f"sqlite:///{tmp_path}/lake/catalog.db"
    assert config.warehouse_in(tmp_path) == f"file://{tmp_path}/lake/warehouse"
    relative = Path("data")
    assert config.catalog_in(relative) == f"sqlite:///{relative.absolute()}/lake/catalog.db"
    other = LakeConfig(catalog="https://catalog.example.org", warehouse="s3://lake/x")
    assert other.catalog_in(tmp_path) == "https://catalog.example.org"
    assert other.warehouse_in(tmp_path) == "s3://lake/x"


def test_settings_name_them(tmp_path: Path) -> None:
    file = tmp_path / "firn.toml"
    file.write_text('[lake]\nwarehouse = "s3://lake/x"\n')
    config = load_node_config(file, {"FIRN_LAKE_CATALOG": "sqlite:////c.db"}).lake
    assert (config.catalog, config.warehouse) == ("sqlite:////c.db", "s3://lake/x")


@pytest.mark.parametrize("settings", [{"catalog": "/c.db"}, {"warehouse": "/lake"}])
def test_what_is_no_place_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        LakeConfig(**settings)


def test_a_rest_catalog_has_warehouses_of_its_own(tmp_path: Path) -> None:
    assert LakeConfig(catalog="https://catalog.example.org").warehouse_in(tmp_path) == ""
    named = LakeConfig(catalog="https://catalog.example.org", warehouse="main")
    assert named.warehouse_in(tmp_path) == "main"


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="says who asks") as caught:
        LakeConfig(catalog="https://me:s3cr3t@catalog.example.org")
    assert "s3cr3t" not in str(caught.value)
