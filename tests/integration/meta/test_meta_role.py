"""Processes in role meta, each with its member of etcd: killed, stopped and started again."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from firnmq.config import MetaConfig
from firnmq.meta.opening import open_etcd
from firnmq.testing.etcd import free_ports
from tests.integration.meta.etcds import etcd_program
from tests.integration.meta.meta_role import MetaProcess, Watched
from tests.integration.meta.test_etcd import until_known


@pytest.fixture
def settings() -> dict[str, object]:
    client, peer = free_ports(2)
    return {
        "FIRN_ETCD_PROGRAM": etcd_program(),
        "FIRN_ETCD_CLIENT_PORT": client,
        "FIRN_ETCD_PEER_PORT": peer,
    }


def store_config(*settings: dict[str, object]) -> MetaConfig:
    return MetaConfig(
        endpoints=tuple(f"127.0.0.1:{each['FIRN_ETCD_CLIENT_PORT']}" for each in settings)
    )


def test_a_member_that_dies_is_started_again_and_ends_with_its_process(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    served = MetaProcess(tmp_path / "meta", settings)
    store = open_etcd(store_config(settings))
    revision = store.txn(puts={"a": b"1"})
    # 1. The member is killed: it comes back with its data.
    first = served.etcd_pid()
    member = Watched(first)
    os.kill(first, signal.SIGKILL)
    member.wait_for_end()
    assert until_known(lambda: store.txn(puts={"a": b"2"})) > revision
    second = served.etcd_pid()
    assert second != first
    assert "etcd_ended exit_code=-9" in served.log_text()
    # 2. Our process is killed: the member does not outlive it.
    member = Watched(second)
    served.kill()
    member.wait_for_end()
    # 3. Started again, it has everything; stopped, it takes the member along.
    again = MetaProcess(tmp_path / "meta", settings)
    entry = until_known(lambda: store.get("a"))
    assert entry is not None
    assert entry.value == b"2"
    member = Watched(again.etcd_pid())
    again.stop()
    member.wait_for_end()
    assert again.process.returncode == 0
    store.close()


@pytest.mark.slow
def test_three_processes_are_one_etcd(tmp_path: Path) -> None:
    ports = free_ports(6)
    peers = ",".join(f"m{number}=127.0.0.1:{ports[number]}" for number in range(3))
    all_settings: list[dict[str, object]] = [
        {
            "FIRN_ETCD_PROGRAM": etcd_program(),
            "FIRN_ETCD_NAME": f"m{number}",
            "FIRN_ETCD_PEERS": peers,
            "FIRN_ETCD_PEER_PORT": ports[number],
            "FIRN_ETCD_CLIENT_PORT": ports[3 + number],
        }
        for number in range(3)
    ]
    with ExitStack() as opened:
        served = []
        for number, settings in enumerate(all_settings):
            # The first one waits for the others without ending.
            process = MetaProcess(tmp_path / f"m{number}", settings)
            opened.callback(process.stop)
            served.append(process)
        store = open_etcd(store_config(*all_settings))
        opened.callback(store.close)
        until_known(lambda: store.txn(puts={"a": b"1"}))
        served[0].kill()
        assert until_known(lambda: store.get("a")) is not None
        until_known(lambda: store.txn(puts={"a": b"2"}))


def test_what_cannot_run_is_said_at_once(tmp_path: Path, settings: dict[str, object]) -> None:
    nowhere = {**settings, "FIRN_ETCD_PROGRAM": tmp_path / "nowhere"}
    with pytest.raises(AssertionError, match="nowhere cannot be run"):
        MetaProcess(tmp_path / "meta", nowhere)
    unknown = tmp_path / "firn.toml"
    unknown.write_text("[etcd]\nnames = 'm1'\n")
    with pytest.raises(AssertionError, match="did you mean name"):
        MetaProcess(tmp_path / "meta", {"FIRN_CONFIG": unknown})
    held = MetaProcess(tmp_path / "meta", settings)
    with pytest.raises(AssertionError, match="in use"):
        MetaProcess(tmp_path / "meta", settings)
    held.stop()
