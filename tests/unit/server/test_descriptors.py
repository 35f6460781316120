"""Descriptors: storage's share is set aside before connections get theirs."""

from __future__ import annotations

import dataclasses

import pytest

from firnmq.disk.ranges import MAPPINGS_MAX
from firnmq.server.descriptors import share_out, within
from firnmq.server.settings import NodeConfig

ROCKSDB = 64


@pytest.mark.parametrize("limit", [1024, 1500, 4096, 20_000, 1 << 20])
def test_what_everyone_may_have_fits_within_the_limit(limit: int) -> None:
    shares = share_out(limit, NodeConfig())
    taken = shares.open_files + shares.kafka_connections + shares.http_connections
    assert taken + MAPPINGS_MAX + ROCKSDB < limit
    assert min(shares.open_files, shares.kafka_connections, shares.http_connections) > 0


def test_where_there_is_enough_everyone_has_what_is_configured() -> None:
    config = NodeConfig()
    assert within(share_out(1 << 20, config), config) == config


def test_with_few_descriptors_one_address_leaves_some_for_others() -> None:
    config = NodeConfig()
    tight = within(share_out(1024, config), config)
    assert tight.kafka.connections_max < config.kafka.connections_max
    assert tight.kafka.connections_per_address_max < tight.kafka.connections_max
    assert tight.store.open_files < config.store.open_files
    assert tight.admin.connections_per_address_max < tight.admin.connections_max


@pytest.mark.parametrize("limit", [8, 64, 256])
def test_a_tiny_limit_leaves_something_to_everyone(limit: int) -> None:
    config = NodeConfig()
    config = dataclasses.replace(config, admin=dataclasses.replace(config.admin, enabled=False))
    tight = within(share_out(limit, config), config)
    assert tight.kafka.connections_max >= 1
    assert tight.store.open_files >= 1
