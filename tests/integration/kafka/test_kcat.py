"""kcat, where it is installed: what its users type."""

from __future__ import annotations

import shutil
import subprocess

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
