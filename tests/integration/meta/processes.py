"""Processes that write to one meta store until they are done or killed, and say what they did."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from firnmq.meta import Compare, SqliteMetaStore, TxnConflict


def _say(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode() + b"\n")


def count_up(descriptor: int, path: str, name: str, rounds: int) -> None:
    """Adds one to a number that others add to as well, each time with a key of its own."""
    store = SqliteMetaStore(Path(path), is_shared=True)
    _say(descriptor, "open")
    for number in range(rounds):
        while True:
            entry = store.get("n")
            compare = Compare.absent("n") if entry is None else Compare.unchanged(entry)
            total = 1 if entry is None else int(entry.value) + 1
            puts = {"n": b"%d" % total, f"{name}/{number:06d}": b"%d" % total}
            try:
                _say(descriptor, f"{store.txn([compare], puts)} {total}")
                break
            except TxnConflict:
                continue
    store.close()


def move_around(descriptor: int, path: str, seed: int) -> None:
    """Without end: puts a set of keys and removes another, so that a part of it would show."""
    rng = random.Random(seed)
    store = SqliteMetaStore(Path(path))
    entry = store.get("round")
    number = 0 if entry is None else int(entry.value)
    while True:
        number += 1
        value = b"%d" % number
        puts = {f"{number % 3}/{at}": value * 200 for at in range(rng.randrange(1, 40))}
        puts["round"] = value
        gone = [each.key for each in store.range(f"{(number + 1) % 3}/").entries]
        _say(descriptor, f"intend {number} {len(puts) - 1}")
        _say(descriptor, f"done {number} {store.txn([], puts, gone)}")


def churn(descriptor: int, path: str, name: str) -> None:
    """Without end, beside others: puts two keys with one value, under a name of its own."""
    store = SqliteMetaStore(Path(path), is_shared=True)
    number = 0
    while True:
        number += 1
        value = b"%d" % number * 500
        _say(descriptor, f"{store.txn(puts={f'{name}/a': value, f'{name}/b': value})}")


def live(descriptor: int, path: str, ttl_s: float) -> None:
    """Puts a key under a session and keeps it alive until the end."""
    store = SqliteMetaStore(Path(path), is_shared=True)
    session = store.session(ttl_s)
    store.txn(puts={"nodes/1": b""}, session=session)
    _say(descriptor, "alive")
    while True:
        session.keep_alive()
        time.sleep(ttl_s / 5)


def hold_the_lock(descriptor: int, path: str) -> None:
    """Stands still in the middle of a transaction."""
    store = SqliteMetaStore(Path(path), is_shared=True)
    with store._writing() as db:
        db.execute("INSERT INTO entries VALUES ('half', x'', 1, 1, 0)")
        _say(descriptor, "held")
        time.sleep(600)
