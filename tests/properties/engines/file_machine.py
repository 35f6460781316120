"""The machine of engines with everything behind it: mover, object store, cache of cold reads."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from firnmq.config import StoreConfig
from firnmq.engines import AdapterOffsetStrategy
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from tests.conformance.tier_lab import TierLab
from tests.properties.engines.machine import KEYS, TAGS, EngineMachine, new_records


class FileTierMachine(EngineMachine):
    """One shard of one engine; its object store is a directory."""

    more_options = {"tiering": "on", "cleanup.policy": "delete"}
    lab: TierLab

    def new_lab(self, config: StoreConfig) -> TierLab:
        return TierLab(self.directory / "data", self.storage_type, config=config)

    @rule(
        drawn=st.lists(new_records(), min_size=2, max_size=5),
        count=st.integers(1, 3),
        local_bytes=st.sampled_from([None, 0, 0, 1500]),
        expired=st.sampled_from([None, None, 0.4, 0.9]),
    )
    def grow_old(
        self, drawn: list, count: int, local_bytes: int | None, expired: float | None
    ) -> None:
        """A few segments more, all of them copied and perhaps dropped here; then everything is
        asked."""
        for _ in range(count):
            self._append(self._records(drawn))
            self.shard.roll()
        self.housekeep()
        self.set_local_retention(local_bytes)
        self.move()
        self.move()
        if expired is not None:
            self.delete_before(expired)
        self.ask_everything()

    @rule()
    def ask_everything(self) -> None:
        for key in KEYS:
            self.read_by_key(key)
        for tag in TAGS:
            self.read_by_tag(tag, 0, 2**31 - 1, 2**31 - 1)
        for time in (-4000, -2000, 0):
            self.find_by_time(time, AdapterOffsetStrategy.EARLIEST)
        for fraction in (0, 0.3, 0.7):
            self.read_by_offset(fraction, 3, 2000)
            self.read_raw(fraction, 2**31 - 1)
            self.read_stored(fraction, 2000, False)

    @rule(local_bytes=st.sampled_from([None, 0, 1500]))
    def set_local_retention(self, local_bytes: int | None) -> None:
        self.lab.reconfigure(self.shard, {"local.retention.bytes": local_bytes})

    @rule()
    def move(self) -> None:
        self.lab.move()

    @rule(
        drawn=st.lists(new_records(), min_size=1, max_size=3),
        calls=st.integers(0, 14),
        expired=st.sampled_from([None, 0.5]),
    )
    def crash_while_moving(self, drawn: list, calls: int, expired: float | None) -> None:
        """The store answers so many calls more, then the node is killed."""
        self._append(self._records(drawn))
        self.shard.roll()
        self.housekeep()
        if expired is not None:
            self.delete_before(expired)
        self.lab.faults.calls_left = calls
        self.move()
        self.crash()
        self.lab.faults.calls_left = None
        self.ask_everything()

    @rule()
    def store_and_metadata_agree(self) -> None:
        """Once all has settled nothing is missing in the store, and a scrub leaves what counts."""
        self.move()
        self.move()
        report = self.lab.mover.scrub(dry_run=False, grace_ms=0)
        assert report.missing == []
        assert self.lab.mover.scrub(dry_run=True, grace_ms=0).orphans == []
        assert not any(meta.state is SegmentState.DELETED for meta in self._chain())
        assert self.lab.store.verifier.verify(self.shard.name).findings == ()
        self.ask_everything()

    def _chain(self) -> list[SegmentMeta]:
        return self.lab.store.state.chain(self.shard.status.spec.uid)

    @invariant()
    def nothing_is_lost_here_before_it_is_there(self) -> None:
        if not hasattr(self, "model"):
            return
        for meta in self._chain():
            if not meta.is_local and meta.state is SegmentState.TIERED:
                assert meta.tier is not None
                content = self.lab.objects / f"{meta.tier.key}.seg"
                assert content.stat().st_size == meta.length
