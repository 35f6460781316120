"""Several processes of one machine as its clients see them: one status, one health, one scrape.

Whichever process is asked asks the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from firnmq.cluster.peers import Served
from firnmq.errors import FirnError
from firnmq.server.admin.metrics import Metrics
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.reports import NodeReport, NodeReports
from firnmq.server.documents import NodeStatus, ProcessStatus, Readiness, StorageProblem
from firnmq.server.processes.place import Place

_METRICS: Final = "metrics"
_TIMEOUT_S = 5.0
_PROBLEMS_SHOWN_MAX = 100
_WORST_FIRST = ("stopping", "failing", "ready")


class _Family(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: str
    text: str
    samples: list[tuple[str, dict[str, str], float]]


class Machine:
    """Used from the node's event loop."""

    def __init__(
        self, place: Place, others: OtherNodes, reports: NodeReports, metrics: Metrics
    ) -> None:
        self._place = place
        self._others = others
        self._reports = reports
        self._metrics = metrics
        others.serve(_METRICS, self._serve_metrics)

    async def status(self) -> NodeStatus:
        """The first process's that is there, with the sums of all."""
        found = await self._all_reports()
        present = {process: each for process, each in found.items() if isinstance(each, NodeReport)}
        statuses = [each.status for each in present.values()]
        sums = {name: sum(getattr(each, name) for each in statuses) for name in _SUMMED}
        problems = [
            msgspec.structs.replace(each, subject=f"process {process}: {each.subject}")
            for process, report in present.items()
            for each in report.status.problems
        ]
        problems.sort(key=_since)
        return msgspec.structs.replace(
            statuses[0],
            **sums,
            data=str(self._place.directory.resolve()),
            started_ms=min(each.started_ms for each in statuses),
            disk_free_bytes=min(each.disk_free_bytes for each in statuses),
            problems=problems[:_PROBLEMS_SHOWN_MAX],
            processes=[self._described(process, each) for process, each in found.items()],
        )

    async def readiness(self) -> Readiness:
        """As bad as the worst process's."""
        statuses, reasons = [], []
        for process, report in (await self._all_reports()).items():
            if isinstance(report, NodeReport):
                statuses.append(report.readiness.status)
                reasons += [f"process {process}: {each}" for each in report.readiness.reasons]
            else:
                statuses.append("failing")
                reasons.append(f"process {process} is away")
        worst = next((each for each in _WORST_FIRST if each in statuses), "failing")
        return Readiness(status=worst, reasons=reasons)

    async def families(self) -> list[Metric]:
        """Metrics of all processes, each with the label `process`."""
        answers, own = await asyncio.gather(
            self._others.ask_all(self._other_nodes(), _METRICS, _families, timeout_s=_TIMEOUT_S),
            self._metrics.families(),
        )
        merged: dict[str, Metric] = {}
        up = GaugeMetricFamily("firn_process_up", "Whether the process serves.", labels=["process"])
        for node, process in self._place.nodes.items():
            answer = _packed(own) if node == self._others.node else answers[node]
            label = str(process)
            is_up = not isinstance(answer, FirnError)
            up.add_metric([label], is_up)
            for each in answer if not isinstance(answer, FirnError) else ():
                family = merged.setdefault(each.name, Metric(each.name, each.text, each.kind))
                for sample, labels, value in each.samples:
                    family.add_sample(sample, {**labels, "process": label}, value)
        return [up, *merged.values()]

    async def _serve_metrics(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(_packed(await self._metrics.families())))

    async def _all_reports(self) -> dict[int, NodeReport | FirnError]:
        """By process, in order."""
        found = await self._reports.of(self._place.nodes, timeout_s=_TIMEOUT_S)
        return {process: found[node] for node, process in self._place.nodes.items()}

    def _other_nodes(self) -> list[int]:
        return [node for node in self._place.nodes if node != self._others.node]

    def _described(self, process: int, report: NodeReport | FirnError) -> ProcessStatus:
        node = self._place.first_node + process - 1
        if isinstance(report, FirnError):
            return ProcessStatus(process=process, node_id=node, state="away")
        status = report.status
        return ProcessStatus(
            process=process,
            node_id=node,
            state=report.readiness.status,
            kafka=status.kafka,
            started_ms=status.started_ms,
            leaders=self._others.cluster.leaders.count_of(node),
            stored_bytes=report.stored_bytes,
            connection_count=status.connection_count,
            queued_requests=status.queued_requests,
        )


_SUMMED = (
    *("group_count", "connection_count", "bytes_in_flight", "queued_requests", "queued_bytes"),
)


def _since(problem: StorageProblem) -> int:
    return problem.since_ms


def _packed(families: Iterable[Metric]) -> list[_Family]:
    return [
        _Family(
            each.name,
            each.type,
            each.documentation,
            [(sample.name, dict(sample.labels), sample.value) for sample in each.samples],
        )
        for each in families
    ]


def _families(value: memoryview, raw: memoryview) -> Any:
    return msgspec.msgpack.decode(value, type=list[_Family])
