"""Plans and progress by the options that name a node, a bucket or a data directory."""

from __future__ import annotations

from collections.abc import Mapping

from firnmq.eventlog import EventLogger
from firnmq.lake.plans.places import HttpUnreachable, PlanRefused, make_plan, report_progress
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.plans.wire import NodeUnreachable

_log = EventLogger("lake.source")


class OptionsSource:
    """A topic as the options of `make_plan` name it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def plan(self, wanted: Wanted) -> Plan:
        return make_plan(self._options, wanted)

    def report(
        self, topic_id: str, ends: Mapping[int, int], applied: Mapping[int, str] | None = None
    ) -> None:
        """Reports progress; a failure is only logged. The node then keeps more data than it needs,
        until the next report."""
        try:
            report_progress(self._options, topic_id, ends, applied)
        except (HttpUnreachable, NodeUnreachable, PlanRefused) as error:
            _log.warning("lake_progress_untold", topic=self._options["topic"], reason=str(error))
