"""A member of etcd that a process runs: which program, which options, which log lines."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from firnmq.config import EtcdConfig, MetaConfig, MetaServiceConfig, SecurityConfig
from firnmq.errors import InvalidArgument
from firnmq.meta.etcd_versions import EtcdRefused
from firnmq.meta.member import find_program, member_command
from firnmq.meta.member.supervisor import pass_on
from firnmq.server.meta_settings import MetaRoleConfig

_FILES = {
    "ca_file": Path("/tls/ca.pem"),
    "certificate_file": Path("/tls/own.pem"),
    "key_file": Path("/tls/own.key"),
}


def program(tmp_path: Path, says: str) -> Path:
    path = tmp_path / "etcd"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o700)
    return path


def test_a_member_alone() -> None:
    command = member_command(EtcdConfig(), Path("/bin/etcd"), Path("/data/etcd"))
    assert command[0] == "/bin/etcd"
    assert {
        "--name=m1",
        "--data-dir=/data/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--initial-cluster=m1=http://127.0.0.1:2380",
        "--initial-cluster-state=new",
    } <= set(command)
    assert not [each for each in command if "cert" in each]


def test_a_member_among_others_with_tls() -> None:
    config = EtcdConfig(
        name="m2",
        peers=("m1=a:2380", "m2=b:2380"),
        host="0.0.0.0",
        advertised_host="b",
        is_joining=True,
        **_FILES,  # type: ignore[arg-type]
    )
    command = member_command(config, Path("/bin/etcd"), Path("/data/etcd"))
    assert {
        "--listen-peer-urls=https://0.0.0.0:2380",
        "--initial-advertise-peer-urls=https://b:2380",
        "--advertise-client-urls=https://b:2379",
        "--initial-cluster=m1=https://a:2380,m2=https://b:2380",
        "--initial-cluster-state=existing",
        "--client-cert-auth",
        "--peer-client-cert-auth",
        "--peer-trusted-ca-file=/tls/ca.pem",
    } <= set(command)


def test_a_host_that_none_can_connect_to_needs_an_address() -> None:
    with pytest.raises(InvalidArgument, match="advertised_host"):
        EtcdConfig(host="0.0.0.0")


def test_the_program_is_asked_for_its_version(tmp_path: Path) -> None:
    good = program(tmp_path, "etcd Version: 3.6.16")
    assert find_program(EtcdConfig(program=good)) == good.resolve()
    with pytest.raises(EtcdRefused, match=r"3\.5\.1 .*can lose data"):
        find_program(EtcdConfig(program=program(tmp_path, "etcd Version: 3.5.1")))
    with pytest.raises(InvalidArgument, match="is not etcd"):
        find_program(EtcdConfig(program=program(tmp_path, "hello")))
    with pytest.raises(InvalidArgument, match="cannot be run"):
        find_program(EtcdConfig(program=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (b'{"level":"warn","ts":"x","msg":"slow","took":"2s"}\n', "WARNING", "slow more=took=2s"),
        (b'{"level":"error","msg":"peer is away"}\n', "WARNING", "peer is away"),
        (b'{"level":"fatal","msg":"cannot go on"}\n', "ERROR", "cannot go on"),
        (b'{"level":"info","msg":"ready"}\n', "INFO", "ready"),
        (b"panic: \xff\n", "WARNING", "panic:"),
    ],
)
def test_its_log_lines_become_ours(
    caplog: pytest.LogCaptureFixture, line: bytes, level: str, text: str
) -> None:
    with caplog.at_level(logging.INFO, "firnmq.etcd"):
        pass_on(line)
    assert [each.levelname for each in caplog.records] == [level]
    assert text in caplog.text


def test_strangers_are_refused_unless_they_are_meant() -> None:
    open_to_all = EtcdConfig(host="10.0.0.1")
    with pytest.raises(InvalidArgument, match="no TLS"):
        MetaRoleConfig(etcd=open_to_all).exposures()
    allowed = MetaRoleConfig(etcd=open_to_all, security=SecurityConfig(allow_insecure=True))
    assert len(allowed.exposures()) == 1
    for enabled in (False, True):
        service = MetaServiceConfig(enabled=enabled, host="10.0.0.1")
        config = MetaRoleConfig(service=service, security=SecurityConfig(allow_insecure=True))
        assert len(config.exposures()) == enabled
    for safe in (EtcdConfig(), EtcdConfig(host="10.0.0.1", **_FILES)):  # type: ignore[arg-type]
        assert MetaRoleConfig(etcd=safe).exposures() == []


def test_the_process_reaches_its_own_member_unless_it_is_told_of_others() -> None:
    own = MetaRoleConfig(etcd=EtcdConfig(client_port=1234, **_FILES)).store()  # type: ignore[arg-type]
    assert (own.endpoints, own.ca_file) == (("127.0.0.1:1234",), _FILES["ca_file"])
    external = MetaConfig(endpoints=("a:1",))
    assert MetaRoleConfig(meta=external, etcd=EtcdConfig(enabled=False)).store() == external
    with pytest.raises(InvalidArgument, match="nothing to serve"):
        MetaRoleConfig(etcd=EtcdConfig(enabled=False)).store()
