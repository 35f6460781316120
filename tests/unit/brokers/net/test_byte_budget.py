"""The byte budget: who fits goes on, who does not waits in line, and nobody waits for ever."""

from __future__ import annotations

from random import Random

import pytest

from firnmq.brokers.net.byte_budget import (
    MODERATE_BYTES,
    STEP_BYTES_MIN,
    ByteBudget,
    ByteShare,
    FrameRoom,
)

MIB = 1024 * 1024


def test_those_who_wait_are_served_in_order() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    assert budget.take_or_wait("a", 80, lambda: granted.append("a"))
    assert not budget.take_or_wait("b", 50, lambda: granted.append("b"))
    # c would fit, but b was first.
    assert not budget.take_or_wait("c", 10, lambda: granted.append("c"))
    assert (granted, budget.used_bytes, budget.waiting_count) == ([], 80, 2)
    budget.give_back(80)
    assert (granted, budget.used_bytes, budget.waiting_count) == (["b", "c"], 60, 0)


def test_one_larger_than_everything_gets_in_alone() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take(1)
    assert not budget.take_or_wait("a", 500, lambda: granted.append("a"))
    budget.give_back(1)
    assert (granted, budget.used_bytes, budget.is_full) == (["a"], 500, True)


def test_one_that_goes_away_does_not_hold_up_the_others() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take(100)
    budget.take_or_wait("a", 90, lambda: granted.append("a"))
    budget.take_or_wait("b", 20, lambda: granted.append("b"))
    budget.leave("a")
    budget.leave("never")
    budget.give_back(100)
    assert (granted, budget.used_bytes) == (["b"], 20)


def test_one_that_has_begun_may_go_beyond_the_limit_and_new_ones_go_before_the_next() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    for owner in ("a", "b"):
        assert budget.take_or_wait(owner, 50, lambda: None)
    assert not budget.take_or_wait("new", 1, lambda: granted.append("new"))
    # 1. The first that wants more gets it, the second waits: both would be too much.
    assert budget.grow_or_wait("a", 30, lambda: None)
    assert not budget.grow_or_wait("b", 30, lambda: granted.append("b"))
    assert budget.grow_or_wait("a", 30, lambda: None)
    assert budget.used_bytes == 160
    # 2. The first is whole, but its bytes are still there: nobody else goes beyond the limit.
    budget.leave("a")
    assert granted == []
    # 3. They are given back: the new one came first, then the second goes on.
    budget.give_back(110)
    assert (granted, budget.used_bytes) == (["new", "b"], 81)


def test_a_large_frame_grows_only_while_no_request_of_moderate_size_waits() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take(100)
    favoured = budget.grow_or_wait("favoured", 1, lambda: None, is_large=True)
    assert favoured, "one frame may go beyond the limit"
    assert not budget.grow_or_wait("large", 40, lambda: granted.append("large"), is_large=True)
    assert not budget.take_or_wait("new", 60, lambda: granted.append("new"))
    budget.give_back(50)
    assert granted == [], "40 would fit, but the other goes first"
    budget.give_back(11)
    assert granted == ["new"]
    budget.give_back(40)
    assert granted == ["new", "large"]


def test_the_client_goes_first_that_holds_least() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    many, one = ByteShare(budget, 100), ByteShare(budget, 100)
    many.take(30)
    budget.take(70)
    for number in range(5):
        many.take_or_wait(f"many {number}", 10, lambda: granted.append("many"))
    one.take_or_wait("one", 10, lambda: granted.append("one"))
    budget.give_back(10)
    assert granted == ["one"]
    budget.give_back(20)
    assert granted == ["one", "many", "many"]


def test_one_that_goes_away_while_it_is_favoured_leaves_its_place_to_the_next() -> None:
    budget = ByteBudget(100)
    granted: list[str] = []
    budget.take_or_wait("a", 60, lambda: None)
    budget.take_or_wait("b", 40, lambda: None)
    assert budget.grow_or_wait("a", 60, lambda: None)
    assert not budget.grow_or_wait("b", 40, lambda: granted.append("b"))
    budget.leave("a")
    budget.give_back(120)
    assert (granted, budget.used_bytes) == (["b"], 80)


def test_a_claimed_length_is_not_counted() -> None:
    budget = ByteBudget(100 * MIB)
    room = FrameRoom(budget, 90 * MIB)
    assert room.take_step(lambda: None)
    assert budget.used_bytes == room.size_bytes == MODERATE_BYTES
    budget.take(50 * MIB)
    cautious = FrameRoom(budget, 90 * MIB)
    assert cautious.take_step(lambda: None)
    assert cautious.size_bytes == STEP_BYTES_MIN
    cautious.give_back()
    room.give_back()
    assert budget.used_bytes == 50 * MIB


def test_a_frame_of_moderate_size_takes_two_steps_when_memory_is_short() -> None:
    budget = ByteBudget(100 * MIB)
    budget.take(60 * MIB)
    room = FrameRoom(budget, 900_000)
    sizes = []
    while not room.is_whole:
        assert room.take_step(lambda: None)
        sizes.append(room.size_bytes)
    assert sizes == [STEP_BYTES_MIN, 900_000]


def test_room_is_doubled_up_to_the_length() -> None:
    budget = ByteBudget(100 * MIB)
    room = FrameRoom(budget, 5 * MIB)
    sizes = []
    while not room.is_whole:
        assert room.take_step(lambda: None)
        sizes.append(room.size_bytes)
    assert sizes == [MIB, 2 * MIB, 4 * MIB, 5 * MIB]
    assert room.is_whole
    room.end()
    assert budget.used_bytes == 5 * MIB
    budget.give_back(5 * MIB)
    assert budget.used_bytes == 0


class Sender:
    """A client that sends one frame whenever it may, and is answered some time later."""

    def __init__(self, budget: ByteBudget | ByteShare, length: int) -> None:
        self.length = length
        self.room = FrameRoom(budget, length)
        self.may_send = False
        self.filled = 0
        self.is_answered = False
        self._budget = budget
        self._ask()

    def send(self, size: int) -> None:
        self.filled = min(self.filled + size, self.room.size_bytes)
        if self.filled == self.length:
            self.may_send = False
            self.room.end()
        elif self.filled == self.room.size_bytes:
            self._ask()

    def answer(self) -> None:
        self.is_answered = True
        self._budget.give_back(self.length)

    def leave_or_answer(self) -> None:
        if self.is_whole:
            self.answer()
        else:
            self.leave()

    def leave(self) -> None:
        self.may_send = False
        self.is_answered = True
        self.room.give_back()

    @property
    def is_whole(self) -> bool:
        return self.filled == self.length and not self.is_answered

    def _ask(self) -> None:
        self.may_send = False
        if self.room.take_step(self._go_on):
            self.may_send = True

    def _go_on(self) -> None:
        self.may_send = True


@pytest.mark.parametrize("seed", range(20))
def test_every_frame_ends_and_the_limit_is_kept_but_for_one(seed: int) -> None:
    """Frames of any length, up to more than everything, begun at any time, some given up."""
    chance = Random(seed)
    limit = chance.choice((1, 4, 16)) * MIB
    longest = chance.choice((MIB, limit, 3 * limit))
    budget = ByteBudget(limit)
    senders: list[Sender] = []
    begun = 0
    while begun < 60 or any(not each.is_answered for each in senders):
        if begun < 60 and chance.random() < 0.3:
            senders.append(Sender(budget, chance.randint(STEP_BYTES_MIN, longest)))
            begun += 1
        live = [each for each in senders if not each.is_answered]
        ready = [each for each in live if each.may_send]
        whole = [each for each in live if each.is_whole]
        assert not live or ready or whole, "all wait for each other"
        if whole and chance.random() < 0.3:
            chance.choice(whole).answer()
        elif ready and chance.random() < 0.02:
            chance.choice(ready).leave()
        elif ready:
            chance.choice(ready).send(chance.randint(1, MIB))
        assert budget.used_bytes <= limit + longest
    assert budget.used_bytes == 0
    assert budget.waiting_count == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_frame_ends_within_its_share_and_the_whole(seed: int) -> None:
    """The same with several clients: each keeps to its share but for one frame, and so do all."""
    chance = Random(seed)
    limit = chance.choice((4, 16)) * MIB
    part = limit // chance.choice((1, 2, 4))
    longest = chance.choice((MIB, part, 3 * part))
    budget = ByteBudget(limit)
    shares = [ByteShare(budget, part) for _ in range(3)]
    senders: list[Sender] = []
    begun = 0
    while begun < 60 or any(not each.is_answered for each in senders):
        if begun < 60 and chance.random() < 0.3:
            length = chance.randint(STEP_BYTES_MIN, longest)
            senders.append(Sender(chance.choice(shares), length))
            begun += 1
        live = [each for each in senders if not each.is_answered]
        ready = [each for each in live if each.may_send]
        whole = [each for each in live if each.is_whole]
        assert not live or ready or whole, "all wait for each other"
        if whole and chance.random() < 0.3:
            chance.choice(whole).answer()
        elif live and chance.random() < 0.02:
            chance.choice([each for each in live if not each.is_whole] or whole).leave_or_answer()
        elif ready:
            chance.choice(ready).send(chance.randint(1, MIB))
        assert budget.used_bytes <= limit + longest
        # One frame of the share may exceed it, and the one that may exceed the whole.
        assert all(share.used_bytes <= part + 2 * longest for share in shares)
    assert budget.used_bytes == 0
    assert [share.used_bytes for share in shares] == [0, 0, 0]
    assert [share.waiting_count for share in shares] == [0, 0, 0]


def test_a_client_that_holds_its_share_does_not_stop_another() -> None:
    budget = ByteBudget(8 * MIB)
    greedy, other = ByteShare(budget, 2 * MIB), ByteShare(budget, 2 * MIB)
    greedy.take(2 * MIB)
    waiting = Sender(greedy, MIB)
    assert not waiting.may_send
    assert greedy.waiting_count == 1
    assert Sender(other, MIB).may_send
    assert other.waiting_count == 0
    greedy.give_back(2 * MIB)
    assert waiting.may_send, "room in the share comes back"
