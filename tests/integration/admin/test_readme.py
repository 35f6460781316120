"""The documents' session with a running node, run as it is shown, and their configurations."""

from __future__ import annotations

from pathlib import Path

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.server.meta_settings import load_meta_role_config
from firnmq.server.settings import NodeConfig, load_node_config
from tests.documents import Shell, blocks, pages, text
from tests.integration.admin.serving import Served

URL = "http://127.0.0.1:9644"


def test_the_session_with_a_node(tmp_path: Path) -> None:
    (session,) = blocks("docs/operations.md", "shell-session")
    served = Served(tmp_path / "data")
    try:
        Shell(tmp_path).check(session.replace(URL, served.url))
    finally:
        assert served.stop() == 0


def test_the_quick_start(tmp_path: Path) -> None:
    """As typed beside `make run`; this environment has what `make lake` adds."""
    sessions = blocks("README.md", "shell-session")
    shown = [session for session in sessions if "./firn" in session]
    assert len(shown) == 2
    served = Served(tmp_path / "firn-data")
    try:
        shell = Shell(tmp_path)
        (tmp_path / "firn").symlink_to(tmp_path / "bin" / "firn")
        for session in shown:
            shell.check(session)
    finally:
        assert served.stop() == 0


def test_the_configurations_are_some(tmp_path: Path) -> None:
    node, *_ = blocks("docs/security.md", "toml")
    config = _loaded(tmp_path, node)
    assert config.exposures() == []
    assert config.security.sasl_mechanisms == ("SCRAM-SHA-256",)
    assert config.kafka.topic_defaults.retention_ms == 604800000
    for shown in blocks("docs/tiering.md", "toml"):
        assert _loaded(tmp_path, shown).tiering.url == "s3://my-bucket/firn"
    for page in pages():
        for shown in blocks(page, "toml"):
            if page == "docs/metadata.md":  # Of role meta, which has sections of its own.
                file = tmp_path / "meta.toml"
                file.write_text(shown)
                load_meta_role_config(file)
            elif "schema = " not in shown:  # Such a table names files that are not here.
                _loaded(tmp_path, shown)


def _loaded(path: Path, shown: str) -> NodeConfig:
    file = path / "firn.toml"
    file.write_text(shown)
    return load_node_config(file, {})


def test_the_limits_are_those_there_are() -> None:
    limits = KafkaConfig()
    page = " ".join(text("docs/operations.md").split())
    mib = 1024 * 1024
    for shown in (
        f"frames of {limits.frame_bytes_max // mib} MiB",
        f"{limits.connections_per_address_max:,} connections per address",
        f"{limits.bytes_in_flight_max // mib} MiB of unanswered requests per connection",
        f"{limits.total_bytes_in_flight_max // (1024 * mib)} GiB of all",
        f"{limits.handshake_timeout_s:.0f} seconds for TLS and authentication",
        f"{limits.idle_timeout_s / 60:.0f} minutes of silence",
    ):
        assert shown in page, shown
