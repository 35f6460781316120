"""Sealed segments that other nodes hold: reading them from there, and serving those held here."""

from firnmq.adapter.holders.medium import PeerMedium
from firnmq.adapter.holders.serving import HolderService

__all__ = ["HolderService", "PeerMedium"]
