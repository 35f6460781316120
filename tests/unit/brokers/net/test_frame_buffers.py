"""Buffers of large frames: used again only when nobody can see them any more."""

from __future__ import annotations

import random

from firnmq.brokers.net.frame_buffers import FrameBuffers

MIB = 1024 * 1024


def test_a_buffer_nobody_refers_to_is_used_again() -> None:
    buffers = FrameBuffers(MIB)
    first = buffers.take(600_000)
    place = id(first)
    del first
    second = buffers.take(700_000)
    assert id(second) == place
    assert len(second) == 700_000


def test_a_buffer_with_a_view_is_left_alone() -> None:
    buffers = FrameBuffers(MIB)
    frame = buffers.take(600_000)
    frame[:4] = b"kept"
    view = memoryview(frame)[:4]
    del frame
    for _ in range(40):
        other = buffers.take(600_000)
        other[:4] = b"lost"
    assert bytes(view) == b"kept"


def test_sizes_are_exact() -> None:
    buffers = FrameBuffers(MIB)
    rng = random.Random(4)
    for _ in range(500):
        size = rng.choice((0, 1, 65_536, 65_537, MIB - 1, MIB, MIB + 1, rng.randint(1, 2 * MIB)))
        assert len(buffers.take(size)) == size


def test_many_at_once_are_all_different() -> None:
    buffers = FrameBuffers(MIB)
    rng = random.Random(5)
    held: list[tuple[bytearray, bytes]] = []
    for number in range(400):
        if held and rng.random() < 0.5:
            frame, mark = held.pop(rng.randrange(len(held)))
            assert frame[:8] == mark
            del frame
        frame, mark = buffers.take(rng.randint(66_000, 200_000)), number.to_bytes(8, "big")
        frame[:8] = mark
        held.append((frame, mark))
        del frame
    assert all(frame[:8] == mark for frame, mark in held)
