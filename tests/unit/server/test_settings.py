"""A node's configuration: file, environment, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.config import Durability, SecurityConfig
from firnmq.errors import InvalidArgument
from firnmq.server.settings import NodeConfig, load_node_config


def loaded(tmp_path: Path, text: str, **environment: str) -> NodeConfig:
    path = tmp_path / "firn.toml"
    path.write_text(text)
    return load_node_config(path, environment)


def test_defaults_are_safe() -> None:
    config = load_node_config(environment={})
    assert config == NodeConfig()
    assert config.exposures() == []
    assert (config.kafka.host, config.admin.host) == ("127.0.0.1", "127.0.0.1")


def test_every_section(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        [store]
        io_workers = 3
        [kafka]
        port = 1234
        idle_timeout_s = 5
        [groups]
        initial_rebalance_delay_ms = 0
        [topic_defaults]
        durability = "interval"
        "durability.interval.ms" = 7
        index.key = true
        [admin]
        enabled = false
        [security]
        tls_certificate = "node.pem"
        sasl_mechanisms = ["PLAIN"]
        [log]
        level = "warning"
        """,
        FIRN_IO_WORKERS="4",
        FIRN_KAFKA_AUTO_CREATE_TOPICS="false",
        FIRN_KAFKA_IDLE_TIMEOUT_S="2.5",
        FIRN_TOPIC_DEFAULTS_DURABILITY_INTERVAL_MS="8",
        FIRN_DATA="elsewhere",
    )
    assert config.store.io_workers == 4
    assert (config.kafka.port, config.kafka.idle_timeout_s) == (1234, 2.5)
    assert not config.kafka.auto_create_topics
    assert config.kafka.groups.initial_rebalance_delay_ms == 0
    defaults = config.kafka.topic_defaults
    assert (defaults.durability, defaults.durability_interval_ms) == (Durability.INTERVAL, 8)
    assert (defaults.index_key, defaults.index_tag) == (True, False)
    assert not config.admin.enabled
    assert config.security.tls_certificate == Path("node.pem")
    assert config.security.sasl_mechanisms == ("PLAIN",)
    assert config.log.level == "warning"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[nodes]\n", "nodes"),
        ("[kafka]\nports = 1\n", "kafka.ports"),
        ("[kafka]\ngroups = 1\n", "kafka.groups"),
        ("[kafka]\nport = '9092'\n", "kafka.port"),
        ("[kafka]\nport = 70000\n", "port"),
        ("[kafka]\nframe_bytes_max = 0\n", "frame_bytes_max"),
        ("[kafka]\nconnections_per_address_max = -1\n", "connections_per_address_max"),
        ("[topic_defaults]\nsegment.byte = 1\n", "segment.byte"),
        ("[topic_defaults]\nsegment.bytes = 'x'\n", "segment.bytes"),
        ("[admin]\nport = -1\n", "admin.port"),
        ("[admin]\ntoken_file = ''\n", "admin.token_file"),
        ("[admin]\nheader_timeout_s = nan\n", "admin.header_timeout_s"),
        ("[kafka]\nidle_timeout_s = inf\n", "kafka.idle_timeout_s"),
        ("[security]\nsasl_mechanisms = ['GSSAPI']\n", "GSSAPI"),
        ("[security]\nsasl_mechanisms = 'PLAIN'\n", "sasl_mechanisms"),
        ("[security]\ntls_client_ca = 'ca.pem'\n", "tls_client_ca"),
        ("[log]\nlevel = 'loud'\n", "loud"),
        ("log = 1\n", "log"),
    ],
)
def test_refusals_name_what_is_wrong(tmp_path: Path, text: str, names: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        loaded(tmp_path, text)
    assert names in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [("FIRN_KAFKA_PORT", "x"), ("FIRN_KAFKA_PORT", ""), ("FIRN_ADMIN_ENABLED", "perhaps")],
)
def test_bad_variables_are_named(variable: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load_node_config(environment={variable: text})
    assert variable in str(refused.value)


@pytest.mark.parametrize(
    ("text", "exposed"),
    [
        ("[kafka]\nhost = '0.0.0.0'\n", 1),
        ("[kafka]\nhost = '0.0.0.0'\n[security]\ntls_certificate = 'x'\n", 1),
        ("[kafka]\nhost = '::'\n[security]\nsasl_mechanisms = ['PLAIN']\n", 1),
        ("[admin]\nhost = '10.0.0.1'\n", 1),
        ("[admin]\nhost = '10.0.0.1'\nenabled = false\n", 0),
        ("[kafka]\nhost = '127.0.0.2'\n[admin]\nhost = '::1'\n", 0),
        (
            "[kafka]\nhost = '0.0.0.0'\n"
            "[security]\ntls_certificate = 'x'\nsasl_mechanisms = ['SCRAM-SHA-256']\n",
            0,
        ),
        (
            "[kafka]\nhost = '0.0.0.0'\n[security]\ntls_certificate = 'x'\ntls_client_ca = 'y'\n",
            0,
        ),
    ],
)
def test_strangers_are_let_in_only_on_purpose(tmp_path: Path, text: str, exposed: int) -> None:
    config = loaded(tmp_path, text)
    if exposed:
        with pytest.raises(InvalidArgument):
            config.exposures()
    allowed = NodeConfig(
        kafka=config.kafka,
        admin=config.admin,
        security=SecurityConfig(
            tls_certificate=config.security.tls_certificate,
            tls_client_ca=config.security.tls_client_ca,
            sasl_mechanisms=config.security.sasl_mechanisms,
            allow_insecure=True,
        ),
    )
    assert len(allowed.exposures()) == exposed


def test_the_http_listener_of_a_node_with_sasl_has_a_token(tmp_path: Path) -> None:
    text = "[admin]\nhost = '0.0.0.0'\n[security]\nallow_insecure = true\n"
    assert "do everything" in loaded(tmp_path, text).exposures()[0]
    (exposure,) = loaded(tmp_path, text + "sasl_mechanisms = ['PLAIN']\n").exposures()
    assert "read the token" in exposure


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_node_has_a_number_that_clients_can_read(tmp_path: Path, number: int) -> None:
    with pytest.raises(InvalidArgument, match="must be 0 to 2,147,483,647"):
        load_node_config(None, {"FIRN_KAFKA_NODE_ID": str(number)})
