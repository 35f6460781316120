"""Where the tables of topics are, and what the section [lake] says about topics."""

from pathlib import Path

import pytest

from firnmq.config import LakeConfig, LakeTopicConfig, load_lake_config
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


def written(folder: Path, text: str) -> Path:
    path = folder / "firn.toml"
    path.write_text(text)
    return path


def test_topics_have_settings_of_their_own(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[lake]\nwarehouse = "s3://lake/firn"\n'
        '[lake.topics.clicks]\nschema = "clicks.json"\npartition = "hour"\n'
        '[lake.topics."a.b"]\nschema = "b.avsc"\nschema_kind = "avro-confluent"\n'
        'writers = {11 = "old.avsc"}\n',
    )
    config = load_lake_config({}, path=path)
    assert config.warehouse == "s3://lake/firn"
    assert config.topics == {
        "clicks": LakeTopicConfig(schema="clicks.json", partition="hour"),
        "a.b": LakeTopicConfig(
            schema="b.avsc", schema_kind="avro-confluent", writers={11: "old.avsc"}
        ),
    }
    assert load_lake_config({}).topics == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[lake.topics.x]\nschemata = 1\n", "schemata"),
        ('[lake.topics.x]\npartition = "week"\n', "neither day nor hour"),
        ('[lake.topics.x]\nschema_kind = "xml"\n', "none of"),
        ('[lake.topics.x]\nwriters = {1 = "x"}\n', "writers need a schema"),
        ("[lake.topics]\nx = 1\n", "Expected `object`"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        load_lake_config({}, path=written(tmp_path, text))
