"""What a turn does about logs whose storage fails."""

from __future__ import annotations

from firnmq.disk import Settlement
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.log import ShardLog


def apart(logs: list[ShardLog]) -> list[list[ShardLog]]:
    """Those that write to shared files, and the others, which a failure there must not harm."""
    sharing = [log for log in logs if log.rows.frames]
    if not sharing:
        return [logs]
    others = [log for log in logs if not log.rows.frames]
    return [others, sharing] if others else [sharing]


def fail_requests(
    settlement: Settlement, log: ShardLog, requests: list[Append], error: BaseException
) -> None:
    """Closes the log and fails its requests, except those that were stored by an earlier turn."""
    failure = log.fail(error)
    kept_end = log.view.end_offset
    log.watchers.wake(settlement)
    for request in requests:
        appended = request.appended
        if appended is not None and appended.next_offset <= kept_end:
            settlement.resolve(request.ticket, appended)
        else:
            settlement.fail(request.ticket, failure)
