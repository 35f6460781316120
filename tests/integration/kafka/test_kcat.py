"""kcat, where it is installed: what its users type."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")


def kcat(node: NodeProcess, *options: str, stdin: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", node.address, *options],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_writes_and_reads(codec: str, node: NodeProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(node)
    lines = [f"k{index}:value {index}" for index in range(100)]
    kcat(node, "-P", "-t", topic, "-K:", "-z", codec, stdin="\n".join(lines) + "\n")
    out = kcat(node, "-C", "-t", topic, "-K:", "-o", "beginning", "-e", "-q")
    assert out.splitlines() == lines
    assert f'topic "{topic}"' in kcat(node, "-L")


def test_kcat_reads_in_a_group_and_goes_on(
    node: NodeProcess, make_topic: MakeTopic, new_name: Callable[[], str]
) -> None:
    topic, group = make_topic(node), new_name()
    for part in ("one", "two"):
        kcat(node, "-P", "-t", topic, "-H", "h=v", stdin=f"{part}\n")
        # The group ends at the end of the partition, having kept its place.
        form = ("-f", "%t %p %o %h %s\n")
        earliest = ("-X", "auto.offset.reset=earliest")
        out = kcat(node, "-G", group, "-c", "1", "-e", "-q", *form, *earliest, topic)
        assert out == f"{topic} 0 {('one', 'two').index(part)} h=v {part}\n"
    assert kcat(node, "-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset 2\n"
