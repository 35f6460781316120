"""A real etcd with TLS, with passwords, full, slow, or away: what a store says and what it does."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import MetaConfig
from firnmq.errors import DiskFull, InvalidArgument, StorageFailed, TimedOut
from firnmq.meta import Compare, MetaCache
from firnmq.meta.etcd import EtcdMetaStore
from firnmq.meta.etcd.client import EtcdError
from firnmq.meta.etcd_versions import EtcdRefused
from firnmq.meta.opening import etcd_settings, open_etcd
from firnmq.testing.etcd import EtcdCluster
from firnmq.testing.tcp_proxy import TcpProxy
from tests.integration.meta.etcds import etcd_program
from tests.integration.meta.test_etcd import until_known
from tests.integration.security.conftest import Authority

SOON_S = 30.0
_MIB = 1024 * 1024


@pytest.fixture
def slow_etcd(tmp_path: Path) -> Iterator[tuple[EtcdCluster, TcpProxy]]:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd")
    host, port = cluster.endpoints[0].split(":")
    proxy = TcpProxy((host, int(port)))
    yield cluster, proxy
    proxy.stop()
    cluster.stop()


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    own = authority.issue("node")
    files = {
        "ca_file": authority.certificate,
        "certificate_file": own.certificate,
        "key_file": own.key,
    }
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", tls=files)
    try:
        config = MetaConfig(endpoints=cluster.endpoints, call_timeout_ms=1_000, **files)  # type: ignore[arg-type]
        store = open_etcd(config)
        revision = store.txn(puts={"a": b"1"})
        watch = store.watch("", revision)
        assert watch.take(SOON_S) is not None
        session = store.session(10)
        session.keep_alive()
        watch.close()
        store.close()
        # What does not fit is refused in time, and the error says so.
        other = stranger.issue("stranger")
        for wrong in (
            {"ca_file": stranger.certificate},
            {"certificate_file": other.certificate, "key_file": other.key},
            {"certificate_file": None, "key_file": None},
            {"ca_file": None, "certificate_file": None, "key_file": None},
        ):
            settings = etcd_settings(dataclasses.replace(config, **wrong))  # type: ignore[arg-type]
            refused = EtcdMetaStore(settings)
            with pytest.raises(TimedOut, match=r"unavailable: .+; nothing was changed"):
                refused.get("a")
            refused.close()
        missing = dataclasses.replace(config, ca_file=tmp_path / "nowhere.pem")
        with pytest.raises(InvalidArgument, match=r"nowhere\.pem cannot be read"):
            EtcdMetaStore(etcd_settings(missing))
    finally:
        cluster.stop()


def test_a_user_with_a_password_also_after_tokens_are_forgotten(tmp_path: Path) -> None:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", options=("--auth-token-ttl=1",))
    try:
        cluster.manage("auth/user/add", name="root", password="secret")
        cluster.manage("auth/user/grant", user="root", role="root")
        cluster.manage("auth/enable")
        (tmp_path / "password").write_text("secret\n")
        config = MetaConfig(
            endpoints=cluster.endpoints,
            user="root",
            password_file=tmp_path / "password",
            call_timeout_ms=3_000,
        )
        cluster.login = {"user": "root", "password": "secret"}
        store = open_etcd(config)
        cache = MetaCache(store)
        cache.wait_for_revision(store.txn(puts={"a": b"1"}), SOON_S)
        # A member that restarts knows no tokens, and so no watch of before.
        cluster.kill(0)
        cluster.start(0)
        cluster.wait_ready()
        revision = until_known(lambda: store.txn(puts={"b": b"2"}))
        cache.wait_for_revision(revision, SOON_S)
        until_known(lambda: store.session(10)).keep_alive()
        cache.close()
        store.close()
        wrong = EtcdMetaStore(cluster.settings(user="root", password="guess"))
        with pytest.raises(EtcdRefused, match="refuses user 'root'"):
            wrong.get("a")
        wrong.close()
        nobody = EtcdMetaStore(cluster.settings())
        with pytest.raises(EtcdError, match="user name is empty"):
            nobody.get("a")
        nobody.close()
    finally:
        cluster.stop()


def test_a_full_etcd_refuses_writes_as_a_full_disk_and_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    quota = f"--quota-backend-bytes={16 * _MIB}"
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", options=(quota,))
    store = cluster.store()
    try:
        revision = store.txn(puts={"a": b"1"})
        watch = store.watch("", revision + 1)
        with pytest.raises(DiskFull):  # noqa: PT012
            for number in range(40):
                revision = store.txn(puts={"big": bytes([number]) * _MIB})
        # Reads, watches and sessions of before go on.
        assert store.get("a") is not None
        seen = 0
        while seen < revision:
            changes = watch.take(SOON_S)
            assert changes is not None
            seen = changes.revision
        watch.close()
        # What an operator does: forget old revisions, free their room, end the alarm.
        store.compact(revision)
        cluster.manage("maintenance/defragment")
        for alarm in cluster.manage("maintenance/alarm", action="GET")["alarms"]:
            cluster.manage("maintenance/alarm", action="DEACTIVATE", **alarm)
        assert until_known(lambda: store.txn(puts={"a": b"2"})) > revision
    finally:
        store.close()
        cluster.stop()


@pytest.mark.slow
def test_an_etcd_that_answers_after_two_seconds_is_used_all_the_same(
    slow_etcd: tuple[EtcdCluster, TcpProxy], caplog: pytest.LogCaptureFixture
) -> None:
    _, proxy = slow_etcd
    config = MetaConfig(endpoints=(proxy.endpoint,))
    store = open_etcd(config)
    cache = MetaCache(store)
    proxy.delay_s = 2.0
    try:
        with caplog.at_level(logging.INFO, "firnmq.meta"):
            session = until_known(lambda: store.session(10))
            revision = until_known(lambda: store.txn(puts={"live": b""}, session=session))
            session.keep_alive()
            cache.wait_for_revision(revision, SOON_S)
            found = store.get("live")
        assert found is not None
    finally:
        cache.close()
        store.close()


@pytest.mark.slow
def test_while_the_network_is_cut_each_wait_ends_in_time_and_is_logged(
    slow_etcd: tuple[EtcdCluster, TcpProxy], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, proxy = slow_etcd
    store = open_etcd(MetaConfig(endpoints=(proxy.endpoint,), call_timeout_ms=1_500))
    cache = MetaCache(store)
    other = cluster.store()
    session = store.session(2)
    revision = store.txn(puts={"live": b""}, session=session)
    cache.wait_for_revision(revision, SOON_S)
    proxy.hold()
    try:
        with caplog.at_level(logging.INFO, "firnmq.meta"), pytest.raises(TimedOut, match="etcd"):
            store.get("a")
        waits = [each for each in caplog.records if getattr(each, "event", "") == "meta_waits"]
        assert waits, "what it waits for is logged"
        assert proxy.endpoint in waits[0].getMessage()
        # Others go on, and learn that the session has lapsed.
        other.txn(puts={"a": b"1"})
        watch = other.watch("live", revision + 1)
        while (changes := watch.take(SOON_S)) is not None and not changes.events:
            continue
        assert changes is not None
        watch.close()
    finally:
        proxy.release()
    last = until_known(lambda: other.txn(puts={"a": b"2"}))
    cache.wait_for_revision(last, SOON_S)
    assert [entry.key for entry in cache.below("")] == ["a"]
    cache.close()
    store.close()
    other.close()


@pytest.mark.slow
def test_all_members_down_and_back(tmp_path: Path) -> None:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", 3)
    store = cluster.store(call_s=1.0)
    cache = MetaCache(store)
    try:
        stored = {"before": until_known(lambda: store.txn(puts={"before": b""}))}
        for member in range(3):
            cluster.kill(member)
        for act in (lambda: store.get("before"), lambda: store.txn(puts={"no": b""})):
            with pytest.raises((TimedOut, StorageFailed)):
                act()
        for member in range(3):
            cluster.start(member)
        cluster.wait_ready()
        stored["after"] = until_known(lambda: store.txn(puts={"after": b""}))
        cache.wait_for_revision(stored["after"], SOON_S)
        assert {entry.key for entry in cache.below("")} >= set(stored)
        assert tuple(cache.below("")) == until_known(lambda: store.range("")).entries
    finally:
        cache.close()
        store.close()
        cluster.stop()


def test_members_of_two_clusters_are_refused(tmp_path: Path) -> None:
    first = EtcdCluster(etcd_program(), tmp_path / "first")
    token = "--initial-cluster-token=b"
    second = EtcdCluster(etcd_program(), tmp_path / "second", options=(token,))
    endpoints = first.endpoints + second.endpoints
    store = EtcdMetaStore(first.settings(endpoints=endpoints, call_s=2.0))
    try:
        store.txn([Compare.absent("a")], {"a": b"1"})
        first.kill(0)
        with pytest.raises(EtcdRefused, match="another cluster"):
            until_known(lambda: store.get("a"))
    finally:
        store.close()
        first.stop()
        second.stop()


def test_where_etcd_is_not_there_at_all_opening_ends_in_time() -> None:
    config = MetaConfig(endpoints=("127.0.0.1:1",), call_timeout_ms=100, start_timeout_ms=200)
    with pytest.raises(TimedOut, match="no member of etcd at 127"):
        open_etcd(config)


@pytest.mark.slow
def test_a_watch_at_a_member_that_is_cut_off_from_the_majority_ends(tmp_path: Path) -> None:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", 3)
    lonely = EtcdMetaStore(cluster.settings(endpoints=cluster.endpoints[:1]))
    try:
        revision = until_known(lambda: lonely.txn(puts={"a": b"1"}))
        watch = lonely.watch("", revision + 1)
        cluster.kill(1)
        cluster.kill(2)
        with pytest.raises(StorageFailed, match="watch"):
            watch.take(SOON_S)
        watch.close()
    finally:
        lonely.close()
        cluster.stop()


@pytest.mark.slow
def test_a_cache_leaves_a_member_that_stands_still(tmp_path: Path) -> None:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd", 3)
    store = cluster.store()
    cache = MetaCache(store)
    other = cluster.store()
    try:
        cache.wait_for_revision(until_known(lambda: other.txn(puts={"a": b"1"})), SOON_S)
        for member in range(3):
            cluster.pause(member)
            revision = until_known(lambda: other.txn(puts={"a": b"2"}))
            cache.wait_for_revision(revision, SOON_S)
            cluster.resume(member)
    finally:
        cache.close()
        store.close()
        other.close()
        cluster.stop()


def test_an_etcd_that_was_restored_from_a_backup_is_found_out(tmp_path: Path) -> None:
    cluster = EtcdCluster(etcd_program(), tmp_path / "etcd")
    store = cluster.store()
    try:
        revision = store.txn(puts={"a": b"1"})
        store.watch("", revision + 1).close()
        with pytest.raises(StorageFailed, match=f"at revision {revision}, it was at 1000: it was"):
            store.watch("", 1001)
    finally:
        store.close()
        cluster.stop()
