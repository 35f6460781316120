"""Buffers of large frames: used again only when nobody can see them any more."""

from __future__ import annotations

import random

from firnmq.brokers.net.frame_buffers import IDLE_BYTES_MAX, KEPT_BYTES_MAX, FrameBuffers

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


def test_a_queue_of_frames_is_served_from_the_same_buffers() -> None:
    """A client that sends faster than the disk writes has many frames here at any time."""
    buffers = FrameBuffers(MIB)
    places = set()
    queue = [buffers.take(MIB) for _ in range(64)]
    places.update(map(id, queue))
    for _ in range(200):
        del queue[0]
        queue.append(buffers.take(MIB - 7))
        places.add(id(queue[-1]))
    assert len(places) == 64


def test_what_is_kept_has_a_bound_whatever_is_in_use() -> None:
    buffers = FrameBuffers(MIB)
    held = [buffers.take(size) for size in (100_000, 300_000, MIB) for _ in range(150)]
    assert buffers.kept_bytes <= KEPT_BYTES_MAX
    del held
    assert len(buffers.take(300_000)) == 300_000
    assert buffers.kept_bytes <= KEPT_BYTES_MAX


def test_free_buffers_are_given_back_when_requests_become_fewer() -> None:
    buffers = FrameBuffers(MIB)
    frames = [buffers.take(size) for size in (100_000, MIB) for _ in range(40)]
    for frame in frames:
        frame[:4] = b"kept"
    del frame
    before = buffers.kept_bytes
    buffers.release_idle()
    assert buffers.kept_bytes == before, "all of them are in use"
    left = frames[:3] + frames[-3:]
    del frames
    buffers.release_idle()
    assert buffers.kept_bytes <= IDLE_BYTES_MAX
    for _ in range(100):
        buffers.take(MIB)[:4] = b"lost"
        buffers.take(100_000)[:4] = b"lost"
    assert all(frame[:4] == b"kept" for frame in left)
