"""Tiered storage over HTTP: what waits and why, upload now, scrub. In a cluster of all nodes."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from firnmq.cluster.peers import Served
from firnmq.disk import call_blocking
from firnmq.errors import FirnError
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import ScrubRequest, UploadRequest, UploadsRequested
from firnmq.tiering.archive.scrubber import ScrubReport
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.move.status import TierStatus, of_all_nodes

T = TypeVar("T")

_STATUS: Final = "tier_status"
_UPLOAD: Final = "tier_upload"
_SCRUB: Final = "tier_scrub"
_TIMEOUT_S = 60.0
_SCRUB_S = 3_600.0
"""A scrub lists all objects of the store."""


class TierAdmin:
    def __init__(self, parts: NodeParts, others: OtherNodes | None = None) -> None:
        """`others`: those of the cluster, if the node is not alone."""
        self._parts = parts
        self._others = others
        if others is not None:
            others.serve(_STATUS, self._serve_status)
            others.serve(_UPLOAD, self._serve_upload)
            others.serve(_SCRUB, self._serve_scrub)

    async def status(self) -> TierStatus:
        own = await self._own_status()
        found = await self._ask(_STATUS, TierStatus, b"")
        # The shards of a node that does not answer are away.
        return of_all_nodes(own, [each for each in found if not isinstance(each, FirnError)])

    async def upload(self, request: UploadRequest) -> UploadsRequested:
        """Requests uploads; the status shows their progress."""
        own = await self._upload(request)
        found = await self._ask(_UPLOAD, UploadsRequested, msgspec.msgpack.encode(request))
        counts = [each.segment_count for each in _without_errors(found)]
        return UploadsRequested(segment_count=own.segment_count + sum(counts))

    async def scrub(self, request: ScrubRequest) -> ScrubReport:
        own = await self._scrub(request)
        found = await self._ask(_SCRUB, ScrubReport, msgspec.msgpack.encode(request), _SCRUB_S)
        reports = [own, *_without_errors(found)]
        # One node removes orphans. If that has just changed, none or two of them have.
        chosen = max(reports, key=lambda each: (each.removed_count, each.swept_count))
        return chosen.with_others(reports)

    async def _ask(
        self, operation: str, kind: type[T], arguments: bytes, timeout_s: float = _TIMEOUT_S
    ) -> list[T | FirnError]:
        """The answers of the other nodes that are there."""
        if self._others is None:
            return []

        def decode(value: memoryview, raw: memoryview) -> T:
            return msgspec.msgpack.decode(value, type=kind)

        nodes = self._others.registered()
        found = await self._others.ask_all(nodes, operation, decode, arguments, timeout_s=timeout_s)
        return list(found.values())

    async def _own_status(self) -> TierStatus:
        return await call_blocking(None, self._mover().status)

    async def _upload(self, request: UploadRequest) -> UploadsRequested:
        mover = self._mover()
        if request.topic is not None:
            self._parts.local.catalog.get(request.topic)
        if request.roll:
            await call_blocking(None, self._parts.local.roll_tiered, request.topic)
        count = await call_blocking(None, mover.request_upload, request.topic)
        return UploadsRequested(segment_count=count)

    async def _scrub(self, request: ScrubRequest) -> ScrubReport:
        def scrub() -> ScrubReport:
            return self._mover().scrub(dry_run=request.dry_run, grace_ms=request.grace_ms)

        return await call_blocking(None, scrub)

    async def _serve_status(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(await self._own_status()))

    async def _serve_upload(self, arguments: bytes) -> Served:
        request = msgspec.msgpack.decode(arguments, type=UploadRequest)
        return Served(msgspec.msgpack.encode(await self._upload(request)))

    async def _serve_scrub(self, arguments: bytes) -> Served:
        request = msgspec.msgpack.decode(arguments, type=ScrubRequest)
        return Served(msgspec.msgpack.encode(await self._scrub(request)))

    def _mover(self) -> TierMover:
        return self._parts.local.mover


def _without_errors(found: list[T | FirnError]) -> list[T]:
    """Raises the first error: the operation is not done while one node has not done its part."""
    for each in found:
        if isinstance(each, FirnError):
            raise each
    return [each for each in found if not isinstance(each, FirnError)]
