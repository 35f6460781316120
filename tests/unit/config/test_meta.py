"""The sections `meta` and `etcd`: what they refuse, and what follows from what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.config import EtcdConfig, MetaConfig, Settings
from firnmq.errors import InvalidArgument

_FILE = Path("file.pem")


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"endpoints": ("http://10.0.0.1:2379",)}, "meta.endpoints"),
        ({"endpoints": ("10.0.0.1",)}, "meta.endpoints"),
        ({"endpoints": ("10.0.0.1:99999",)}, "meta.endpoints"),
        ({"endpoints": ("a:1", "a:1")}, "meta.endpoints"),
        ({"cluster": "a/b"}, "meta.cluster"),
        ({"certificate_file": _FILE}, "meta.certificate_file"),
        ({"certificate_file": _FILE, "key_file": _FILE}, "meta.certificate_file"),
        ({"user": "ann"}, "meta.user"),
        ({"password": "x"}, "meta.user"),
        ({"user": "ann", "password": "x", "password_file": _FILE}, "meta.password_file"),
        ({"call_timeout_ms": 0}, "meta.call_timeout_ms"),
    ],
)
def test_what_cannot_work_is_refused_by_name(values: dict[str, object], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        MetaConfig(**values)  # type: ignore[arg-type]
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"name": "a b"}, "etcd.name"),
        ({"peers": ("10.0.0.1:2380",)}, "etcd.peers"),
        ({"peers": ("m2=10.0.0.1:2380",)}, "etcd.peers"),
        ({"peers": ("m1=a:1", "m1=b:1")}, "etcd.peers"),
        ({"is_joining": True}, "etcd.is_joining"),
        ({"ca_file": _FILE}, "etcd.ca_file"),
        ({"client_port": 0}, "etcd.client_port"),
        ({"quota_bytes": 1}, "etcd.quota_bytes"),
        ({"revisions_kept": 0}, "etcd.revisions_kept"),
    ],
)
def test_a_member_that_cannot_run_is_refused_by_name(
    values: dict[str, object], argument: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        EtcdConfig(**values)  # type: ignore[arg-type]
    assert caught.value.argument == argument


def test_addresses_of_all_kinds_are_taken() -> None:
    for endpoint in ("10.0.0.1:2379", "etcd-1.example.org:2379", "[::1]:2379"):
        assert MetaConfig(endpoints=(endpoint,)).endpoints == (endpoint,)


def test_the_password_comes_from_a_file_or_the_environment_and_is_never_shown(
    tmp_path: Path,
) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\nanything else\n")
    assert MetaConfig(user="ann", password_file=path).secret() == "s3cret"
    environment = {
        "FIRN_META_USER": "ann",
        "FIRN_META_PASSWORD": "s3cret",
        "FIRN_META_ENDPOINTS": "a:1, b:2",
    }
    config = Settings(environment=environment).section("meta", MetaConfig, prefix="META_")
    assert (config.secret(), config.endpoints) == ("s3cret", ("a:1", "b:2"))
    assert "s3cret" not in repr(config)
    for text in (None, "\n"):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(InvalidArgument):
            MetaConfig(user="ann", password_file=path).secret()


def test_where_peers_and_clients_reach_a_member() -> None:
    alone = EtcdConfig(host="10.0.0.1", advertised_host="etcd-1")
    assert (alone.client_endpoint, alone.peer_endpoint) == ("etcd-1:2379", "10.0.0.1:2380")
    one = EtcdConfig(name="m2", peers=("m1=a:2380", "m2=b:2381"))
    assert one.peer_endpoint == "b:2381"
