"""Tiered storage over HTTP: what waits and why, upload now, scrub."""

from __future__ import annotations

from firnmq.disk import call_blocking
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import ScrubRequest, UploadRequest, UploadsRequested
from firnmq.tiering.archive.scrubber import ScrubReport
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.move.status import TierStatus


class TierAdmin:
    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    async def status(self) -> TierStatus:
        return await call_blocking(None, self._mover().status)

    async def upload(self, request: UploadRequest) -> UploadsRequested:
        """Requests uploads; the status shows their progress."""
        mover = self._mover()
        if request.topic is not None:
            self._parts.local.catalog.get(request.topic)
        if request.roll:
            await call_blocking(None, self._parts.local.roll_tiered, request.topic)
        count = await call_blocking(None, mover.request_upload, request.topic)
        return UploadsRequested(segment_count=count)

    async def scrub(self, request: ScrubRequest) -> ScrubReport:
        def scrub() -> ScrubReport:
            return self._mover().scrub(dry_run=request.dry_run, grace_ms=request.grace_ms)

        return await call_blocking(None, scrub)

    def _mover(self) -> TierMover:
        return self._parts.local.mover
