"""The machine of engines with an object store behind it: to the model that makes no difference."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from firnmq.config import StorageType
from firnmq.engines import AdapterOffsetStrategy, ShardSpec
from firnmq.engines.catalog.segments import Medium, SegmentMeta, SegmentState
from firnmq.engines.engine import LogEngine
from firnmq.engines.tiering.copies import become_remote
from tests.conformance.copied import CopiedStore, begin, copy_bytes, upload
from tests.properties.engines.machine import KEYS, TAGS, EngineMachine, fractions, new_records


class TieredMachine(EngineMachine):
    """One shard of one engine, copied and dropped here and there in between."""

    more_options = {"tiering": "on", "cleanup.policy": "delete"}

    def __init__(self) -> None:
        super().__init__()
        self.cold = self.copies = CopiedStore()

    @property
    def engine(self) -> LogEngine:
        engine = self.lab.engine
        assert isinstance(engine, LogEngine)
        return engine

    @rule(
        drawn=st.lists(new_records(), min_size=2, max_size=5),
        count=st.integers(1, 3),
        is_dropped=st.booleans(),
        expired=st.sampled_from([None, None, 0.4, 0.9]),
    )
    def grow_old(self, drawn: list, count: int, is_dropped: bool, expired: float | None) -> None:
        """A few segments more, all of them copied and perhaps dropped here; then everything is
        asked."""
        for _ in range(count):
            self._append(self._records(drawn))
            self.shard.roll()
        self.housekeep()
        self.upload_all()
        if is_dropped:
            self.drop_all_here()
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

    # Copying ------------------------------------------------------------------------------------

    def _pick(self, fraction: float, *states: SegmentState, is_local: bool = True) -> int | None:
        """One of the segments in these states that are kept beyond the process, if there is one."""
        is_memory = self.storage_type == StorageType.MEMORY.value
        found = [
            meta.seq
            for meta in self.shard.status.segments
            if meta.state in states
            and meta.is_local is is_local
            and (meta.medium is Medium.FILE or not is_memory)
        ]
        return found[round(fraction * (len(found) - 1))] if found else None

    @rule(fraction=fractions)
    def upload_one(self, fraction: float) -> None:
        seq = self._pick(fraction, SegmentState.SEALED)
        if seq is not None:
            upload(self.copies, self.engine, self.shard.name, seq)

    @rule()
    def upload_all(self) -> None:
        while (seq := self._pick(0, SegmentState.SEALED)) is not None:
            upload(self.copies, self.engine, self.shard.name, seq)

    @rule(fraction=fractions, has_objects=st.booleans(), is_abandoned=st.booleans())
    def upload_in_part(self, fraction: float, has_objects: bool, is_abandoned: bool) -> None:
        """An uploader that stops somewhere, and perhaps tidies up."""
        seq = self._pick(fraction, SegmentState.SEALED)
        if seq is None:
            return
        name = self.shard.name
        copy, before = begin(self.engine, name, seq)
        if before.tier is not None:
            self.copies.copies.pop(before.tier.key, None)
        if has_objects:
            copy_bytes(self.copies, self.engine.sealed_source(name, seq), copy)
        if is_abandoned:
            self.copies.copies.pop(copy.key, None)
            self.engine.abandon_copy(name, seq, copy.upload_id)

    # Dropping -----------------------------------------------------------------------------------

    @rule(fraction=fractions)
    def drop_here(self, fraction: float) -> None:
        seq = self._pick(fraction, SegmentState.TIERED)
        if seq is not None:
            self.engine.drop_local(self.shard.name, seq)

    @rule()
    def drop_all_here(self) -> None:
        while (seq := self._pick(0, SegmentState.TIERED)) is not None:
            self.engine.drop_local(self.shard.name, seq)

    @rule(fraction=fractions)
    def drop_here_in_part(self, fraction: float) -> None:
        """A crash after the metadata was changed and before the bytes are gone."""
        seq = self._pick(fraction, SegmentState.TIERED)
        if seq is not None:
            log = self.engine.log(self.shard.name)
            with log.lock:
                become_remote(log, seq)
            self.crash()

    @rule(
        age_ms=st.sampled_from([None, 0, 2000]),
        size_bytes=st.sampled_from([None, 0, 2000]),
    )
    def set_local_retention(self, age_ms: int | None, size_bytes: int | None) -> None:
        config = self._spec().config.with_options(
            {"local.retention.ms": age_ms, "local.retention.bytes": size_bytes}
        )
        self.engine.reconfigure(self.shard.name, config)

    def _spec(self) -> ShardSpec:
        return self.shard.status.spec

    @rule(is_forgotten=st.booleans())
    def remove_dead_copies(self, is_forgotten: bool) -> None:
        """What retention has left is removed from the store, and then from the metadata."""
        for meta in self._chain():
            if meta.state is SegmentState.DELETED and meta.tier is not None:
                self.copies.copies.pop(meta.tier.key, None)
                if is_forgotten:
                    self.engine.forget_copy(self.shard.name, meta.seq)

    @rule()
    def verify(self) -> None:
        self.shard.read(self.model.start)  # Opens it, which finishes what a crash interrupted.
        assert self.lab.store.verifier.verify(self.shard.name).findings == ()

    # What always holds --------------------------------------------------------------------------

    def _chain(self) -> list[SegmentMeta]:
        return self.lab.store.state.chain(self._spec().uid)

    @invariant()
    def the_store_has_what_the_metadata_says(self) -> None:
        if not hasattr(self, "model"):
            return
        chain = self._chain()
        assert self.copies.copies.keys() <= {meta.tier.key for meta in chain if meta.tier}
        for meta in chain:
            if meta.state is SegmentState.TIERED:
                assert meta.tier is not None
                assert meta.tier.is_done
                assert meta.tier.key in self.copies.copies
            assert meta.is_local or meta.state in (SegmentState.TIERED, SegmentState.DELETED)
        live = {meta.seq: meta for meta in chain if meta.state is not SegmentState.DELETED}
        for shown in self.shard.status.segments[:-1]:
            if shown.medium is Medium.FILE or self.storage_type != StorageType.MEMORY.value:
                kept = live[shown.seq]
                assert (shown.state, shown.epoch, shown.tier, shown.is_local) == (
                    kept.state,
                    kept.epoch,
                    kept.tier,
                    kept.is_local,
                )
