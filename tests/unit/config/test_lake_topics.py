"""What the section [lake] says about topics."""

from pathlib import Path

import pytest

from firnmq.config import LakeTopicConfig, load_lake_config
from firnmq.errors import InvalidArgument


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
