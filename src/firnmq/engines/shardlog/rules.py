"""What a topic's options ask of a client's batch, worked out once instead of with every batch."""

from __future__ import annotations

from firnmq.config import TopicConfig


class BatchRules:
    """The rules of one configuration. Never changed."""

    __slots__ = (
        *("config", "expire_header", "has_append_time", "limits_timestamps"),
        *("max_batch_bytes", "max_record_bytes", "needs_records", "unpacks"),
    )

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.max_batch_bytes = config.max_batch_bytes
        self.max_record_bytes = config.max_record_bytes
        self.expire_header = config.expire_header_bytes
        self.has_append_time = config.has_append_time
        self.limits_timestamps = config.limits_timestamps
        self.needs_records = (
            config.index_key
            or config.index_tag
            or config.expire_header is not None
            or config.compacts
            or config.limits_timestamps
        )
        """Whether storing a batch takes something from its records, besides judging them."""
        self.unpacks = config.check_compressed or self.needs_records
        """Whether the records of a compressed batch are looked at."""
