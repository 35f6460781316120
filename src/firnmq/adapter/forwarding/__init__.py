"""Operations on shards that other nodes lead: asked there, and answered for other nodes here."""

from firnmq.adapter.forwarding.driver import ClusterDriver
from firnmq.adapter.forwarding.following import ShardFollower
from firnmq.adapter.forwarding.moving import ShardMover
from firnmq.adapter.forwarding.serving import ShardService

__all__ = ["ClusterDriver", "ShardFollower", "ShardMover", "ShardService"]
