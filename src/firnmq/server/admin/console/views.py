"""The views of the console, as the table of endpoints names them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version

from firnmq.server.admin.console.browsing import Browser
from firnmq.server.admin.console.cost import CostView
from firnmq.server.admin.console.figures import Figures
from firnmq.server.admin.console.lake import LakeViews
from firnmq.server.admin.console.leaders import LeaderView
from firnmq.server.admin.console.lists import Lists
from firnmq.server.admin.console.overview import OptionView, OverviewView
from firnmq.server.admin.console.places import PlaceViews
from firnmq.server.admin.console.samples import Samples
from firnmq.server.admin.console.tail import Tail
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import NodeStatus, Readiness


class ConsoleViews:
    def __init__(
        self,
        parts: NodeParts,
        groups: GroupAdmin,
        others: OtherNodes | None,
        status: Callable[[], Awaitable[NodeStatus]],
        readiness: Callable[[], Awaitable[Readiness]],
        reached: Callable[[], dict[str, str]],
    ) -> None:
        self.samples = Samples(parts, others)
        self.figures = Figures(parts, groups, others)
        groups.on_change = self.figures.expire_groups
        self.lists = Lists(parts, self.figures, groups)
        self.cost = CostView(parts, self.figures)
        self.leaders = LeaderView(parts)
        self.lake = LakeViews(parts, others, reached)
        self.places = PlaceViews(parts)
        self.browser = Browser(parts)
        self.tail = Tail(parts)
        self.options = OptionView(parts)
        self.overview = OverviewView(parts, self.samples, status, readiness)
        self.version = version("firnmq")
        self.is_cluster = parts.local.member is not None
