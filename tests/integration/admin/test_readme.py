"""The README's session with a running node, run as it is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from firnmq.server.settings import NodeConfig, load_node_config
from tests.integration.admin.serving import TIMEOUT_S, Served

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
URL = "http://127.0.0.1:9644"


def test_the_session_with_a_node(tmp_path: Path) -> None:
    """Each command's output is as shown, where ... stands for anything."""
    (session,) = re.findall(r"^```shell-session\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    shim = tmp_path / "bin" / "firn"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m firnmq "$@"\n')
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
    served = Served(tmp_path / "data")
    try:
        steps = [step for step in re.split(r"^\$ ", session, flags=re.MULTILINE) if step]
        assert len(steps) > 5
        for step in steps:
            command, _, shown = step.replace(URL, served.url).partition("\n")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                environment[name] = value
                continue
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            pattern = re.escape(_squeezed(shown)).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, _squeezed(done.stdout)), f"$ {command}\n{done.stdout}"
            assert done.returncode == 0
    finally:
        assert served.stop() == 0


def test_the_configurations_are_some(tmp_path: Path) -> None:
    node, *tiered = re.findall(r"^```toml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    config = _loaded(tmp_path, node)
    assert config.exposures() == []
    assert config.security.sasl_mechanisms == ("SCRAM-SHA-256",)
    assert config.kafka.topic_defaults.retention_ms == 604800000
    for text in tiered:
        assert _loaded(tmp_path, text).tiering.url == "s3://my-bucket/firn"


def _loaded(path: Path, text: str) -> NodeConfig:
    file = path / "firn.toml"
    file.write_text(text)
    return load_node_config(file, {})


def test_the_limits_are_those_there_are() -> None:
    from firnmq.brokers.kafka.config import KafkaConfig

    limits = KafkaConfig()
    text = " ".join(README.split())
    mib = 1024 * 1024
    for shown in (
        f"frames of {limits.frame_bytes_max // mib} MiB",
        f"{limits.connections_per_address_max:,} connections per address",
        f"{limits.bytes_in_flight_max // mib} MiB of unanswered requests per connection",
        f"{limits.total_bytes_in_flight_max // (1024 * mib)} GiB of all",
        f"{limits.handshake_timeout_s:.0f} seconds for TLS and authentication",
        f"{limits.idle_timeout_s / 60:.0f} minutes of silence",
    ):
        assert shown in text, shown


def _squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())
