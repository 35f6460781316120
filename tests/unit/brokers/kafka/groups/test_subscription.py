import struct

import pytest

from firnmq.brokers.kafka.groups.subscription import is_same_interest


def subscription(*topics: str, rest: bytes = b"", version: int = 1) -> bytes:
    names = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", version, len(topics)) + names + rest


def test_owned_partitions_and_order_do_not_matter() -> None:
    before = subscription("a", "b", rest=b"owned partitions")
    assert is_same_interest("consumer", before, subscription("b", "a", version=3))


def test_other_topics_matter() -> None:
    assert not is_same_interest("consumer", subscription("a"), subscription("a", "b"))
    assert not is_same_interest("consumer", subscription("a"), subscription())


def test_other_protocol_types_are_compared_byte_by_byte() -> None:
    before = subscription("a", rest=b"x")
    assert is_same_interest("connect", before, before)
    assert not is_same_interest("connect", before, subscription("a", rest=b"y"))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0\1\0\0",
        struct.pack(">hi", 1, -1),
        struct.pack(">hi", 1, 2**31 - 1),
        struct.pack(">hi", -1, 0),
        struct.pack(">hih", 1, 1, -5),
        struct.pack(">hih", 1, 1, 500) + b"short",
        struct.pack(">hih", 1, 2, 1) + b"a" + b"\0",
    ],
)
def test_bytes_that_are_no_subscription_equal_only_themselves(damaged: bytes) -> None:
    assert is_same_interest("consumer", damaged, damaged)
    assert not is_same_interest("consumer", damaged, subscription("a"))
    assert not is_same_interest("consumer", damaged, damaged + b"more")
