"""Who loses memory when it is short: clients that stall, then clients that hold more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from firnmq.brokers.kafka.connections.large_frame import LargeFrame
from firnmq.brokers.net.byte_budget import MODERATE_BYTES, ByteBudget, ByteShare
from firnmq.brokers.net.client_progress import STALL_S, SendProgress
from firnmq.brokers.net.frame_buffers import FrameBuffers
from firnmq.brokers.net.memory_pressure import AGE_S, WAIT_S, MemoryPressure

MIB = 1024 * 1024
LIMIT = 32 * MIB


class Sender:
    """A connection whose client sends one large frame as far as it wants to."""

    def __init__(self, share: ByteShare, length: int, now_s: float) -> None:
        self.share = share
        self.frame = LargeFrame(share, length, now_s)
        self.is_closed = False
        self._wanted = 0
        self._ask(self._begin, now_s)

    def send(self, size: int, now_s: float) -> None:
        """Sends so many bytes, as soon as the node takes them."""
        self._wanted += size
        self._go_on(now_s)

    @property
    def is_whole(self) -> bool:
        return self.frame.is_begun and self.frame.is_whole

    def _begin(self) -> None:
        self.frame.begin(FrameBuffers(MODERATE_BYTES), memoryview(b""))
        self.frame.progress.resume(self._now_s)
        self._go_on(self._now_s)

    def _grow(self) -> None:
        self.frame.grow()
        self.frame.progress.resume(self._now_s)
        self._go_on(self._now_s)

    def _go_on(self, now_s: float) -> None:
        while self.frame.is_begun and self._wanted and not self.is_whole:
            if self.frame.is_full:
                return
            count = min(len(self.frame.vacant()), self._wanted)
            self._wanted -= count
            self.frame.received(count, now_s)
            if self.frame.is_full and not self.is_whole:
                self._ask(self._grow, now_s)

    def _ask(self, go_on: Callable[[], None], now_s: float) -> None:
        self._now_s = now_s
        if self.frame.room.take_step(go_on, 0, now_s):
            go_on()
        else:
            self.frame.progress.pause(now_s)

    # As `pressure.Holder`.

    @property
    def reclaimable_bytes(self) -> int:
        return 0 if self.is_closed or self.is_whole else self.frame.room.size_bytes

    def shrink(self) -> None: ...

    def is_stalled(self, now_s: float) -> bool:
        return self.frame.progress.is_stalled(now_s)

    def frame_age_s(self, now_s: float) -> float:
        return now_s - self.frame.progress.began_s

    def frame_bytes_per_s(self, now_s: float) -> float:
        return self.frame.progress.bytes_per_s(now_s)

    def evict(self) -> int:
        self.is_closed = True
        self.frame.room.give_back()
        return 0


class Node:
    def __init__(self, share_bytes: int = LIMIT // 4) -> None:
        self.budget = ByteBudget(LIMIT)
        self.shares: list[ByteShare] = []
        self.senders: list[Sender] = []
        self._share_bytes = share_bytes
        self.pressure = MemoryPressure(self.budget, lambda: self.shares, lambda: self.senders)

    def client(self) -> ByteShare:
        self.shares.append(ByteShare(self.budget, self._share_bytes))
        return self.shares[-1]

    def sender(self, share: ByteShare, length: int, now_s: float = 0.0) -> Sender:
        self.senders.append(Sender(share, length, now_s))
        return self.senders[-1]


def attacked(connections: int, addresses: int, sent: int) -> Node:
    """Half-sent frames of 50 MiB from some addresses fill the budget."""
    node = Node()
    shares = [node.client() for _ in range(addresses)]
    for number in range(connections):
        node.sender(shares[number % addresses], 50 * MIB).send(sent, 0.0)
    return node


@pytest.mark.parametrize("sent", [100_000, MIB, 3 * MIB])
@pytest.mark.parametrize(("connections", "addresses"), [(40, 20), (600, 20), (2_000, 100)])
def test_a_request_of_moderate_size_gets_through(
    connections: int, addresses: int, sent: int
) -> None:
    """Attackers stop in the middle of large frames; a client comes a little later."""
    node = attacked(connections, addresses, sent)
    client = node.sender(node.client(), 900_000, AGE_S)
    client.send(900_000, AGE_S)
    now_s = AGE_S
    for _ in range(10):
        now_s += WAIT_S
        client._now_s = now_s
        node.pressure.relieve(now_s)
    assert client.is_whole
    assert not client.is_closed
    assert node.budget.used_bytes <= LIMIT + 50 * MIB


def test_only_as_many_connections_are_closed_as_are_needed() -> None:
    node = attacked(40, 20, 3 * MIB)
    client = node.sender(node.client(), 900_000, AGE_S)
    client.send(64 * 1024, AGE_S)
    node.pressure.relieve(AGE_S + 2 * WAIT_S)
    assert client.frame.is_begun
    assert sum(sender.is_closed for sender in node.senders) <= 20, "one for each that waited"


def test_a_client_that_stalls_goes_before_one_that_sends() -> None:
    node = Node(share_bytes=LIMIT)
    stalled, busy = node.client(), node.client()
    quiet = [node.sender(stalled, 50 * MIB) for _ in range(4)]
    for sender in quiet:
        sender.send(MIB + 1, 0.0)  # Has memory for another MiB and does not use it.
    sending = [node.sender(busy, 50 * MIB) for _ in range(4)]
    for sender in sending:
        sender.send(3 * MIB, 0.0)
        sender.send(MIB // 2, STALL_S)
    node.budget.take(LIMIT - node.budget.used_bytes)
    client = node.sender(node.client(), 100_000, STALL_S)
    now_s = STALL_S + 2 * WAIT_S
    node.pressure.relieve(now_s)
    assert client.frame.is_begun
    assert [sender.is_closed for sender in quiet].count(True) == 1
    assert not any(sender.is_closed for sender in sending)


def test_a_client_does_not_lose_its_own_frames_to_its_other_requests() -> None:
    """Frames that wait for memory within one share take turns; none of them stalls."""
    node = Node(share_bytes=2 * MIB)
    share = node.client()
    senders = [node.sender(share, 900_000) for _ in range(20)]
    for sender in senders:
        sender.send(900_000, 0.0)
    node.pressure.relieve(60.0)
    assert not any(sender.is_closed for sender in senders)


def test_a_stalled_frame_does_not_fill_the_share_of_its_own_client() -> None:
    node = Node(share_bytes=2 * MIB)
    share = node.client()
    stalled = [node.sender(share, 1_000_000) for _ in range(4)]
    for sender in stalled:
        sender.send(70_000, 0.0)
    client = node.sender(share, 900_000, STALL_S)
    client.send(900_000, STALL_S)
    for tenths in range(2, 12):
        client._now_s = STALL_S + tenths / 10
        node.pressure.relieve(client._now_s)
    assert client.is_whole


def test_time_stands_still_while_the_node_does_not_read() -> None:
    progress = SendProgress(0.0)
    progress.received(100_000, 1.0)
    progress.pause(1.0 + STALL_S / 2)
    assert not progress.is_stalled(100.0)
    progress.resume(100.0)
    # Half of the time had gone by, and it counts: a pause gives a frame no time of its own.
    assert not progress.is_stalled(100.0 + STALL_S / 4)
    assert progress.is_stalled(100.0 + STALL_S)
