"""Shares of clients in the table of transactional ids, compared with a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firnmq.brokers.kafka.transactions.config import TransactionConfig
from firnmq.brokers.kafka.transactions.shares import IdShares

NAMES = st.sampled_from([f"{owner}{number}" for owner in "xyz" for number in range(4)])
CONNECTIONS = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("idle"), NAMES, st.booleans()),
        st.tuples(st.just("begin"), NAMES),
        st.tuples(st.just("hold"), NAMES, CONNECTIONS),
        st.tuples(st.just("release"), CONNECTIONS),
    ),
    max_size=60,
)


class Model:
    def __init__(self) -> None:
        self.ids: dict[str, tuple[bool, bool]] = {}
        """Id → whether it has had a transaction, whether it is idle."""
        self.held: dict[int, str] = {}
        self.since: dict[str, int] = {}
        """Evictable id → since which step."""

    def note(self, step: int) -> None:
        for name, (has_begun, is_idle) in self.ids.items():
            if is_idle and not has_begun and name not in self.held.values():
                self.since.setdefault(name, step)
            else:
                self.since.pop(name, None)
        for name in set(self.since) - set(self.ids):
            del self.since[name]

    def oldest(self, owner: str) -> str | None:
        theirs = [name for name in self.since if name[0] == owner]
        return min(theirs, key=self.since.__getitem__, default=None)


@given(STEPS)
def test_every_id_is_where_the_model_has_it(steps: list[tuple]) -> None:
    shares, model = IdShares(TransactionConfig(client_unused_id_count_max=3)), Model()
    for number, (step, *arguments) in enumerate(steps):
        name = arguments[0]
        if step == "add":
            shares.add(name, name[0])
            model.ids.setdefault(name, (False, False))
        elif step == "remove":
            shares.remove(name)
            model.ids.pop(name, None)
            model.held = {key: value for key, value in model.held.items() if value != name}
        elif step == "idle":
            has_begun = model.ids.get(name, (False, False))[0]
            shares.update(name, has_begun=has_begun, is_idle=arguments[1])
            if name in model.ids:
                model.ids[name] = (has_begun, arguments[1])
        elif step == "begin":
            shares.update(name, has_begun=True, is_idle=True)
            if name in model.ids:
                model.ids[name] = (True, True)
        elif step == "hold" and name in model.ids:
            shares.hold(name, arguments[1])
            model.held[arguments[1]] = name
        elif step == "release":
            shares.release(arguments[0])
            model.held.pop(arguments[0], None)
        model.note(number)
        assert len(shares) == len(model.ids)
        most = max((sum(n[0] == owner for n in model.since) for owner in "xyz"), default=0)
        for owner in "xyz":
            assert shares.oldest_evictable(owner) == model.oldest(owner)
            unused = [n for n, (begun, _) in model.ids.items() if n[0] == owner and not begun]
            assert shares.limit_reached_by(owner) == (3 if len(unused) >= 3 else None)
        chosen = shares.oldest_evictable()
        if chosen is None:
            assert not model.since
        else:
            assert chosen == model.oldest(chosen[0])
            assert sum(n[0] == chosen[0] for n in model.since) == most
