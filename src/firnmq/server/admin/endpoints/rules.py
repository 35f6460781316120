"""Who may do what, as the HTTP listener offers it."""

from __future__ import annotations

import asyncio

from firnmq.brokers.security.acl import RuleFilter, RuleStore
from firnmq.server.documents import AccessRule, NewRules, RulesAdded, RuleSelection
from firnmq.server.rules import filter_of, rule_of, shown_rule


class RuleAdmin:
    """Rules can be made before the authorizer is switched on. Changes wait for the disk, so threads
    make them."""

    def __init__(self, rules: RuleStore) -> None:
        self._rules = rules

    def all(self) -> list[AccessRule]:
        return [shown_rule(rule) for rule in self._rules.select(RuleFilter())]

    async def add(self, new: NewRules) -> RulesAdded:
        rules = [rule_of(each) for each in new.rules]
        loop = asyncio.get_running_loop()
        return RulesAdded(added=await loop.run_in_executor(None, self._rules.add, rules))

    async def remove(self, selection: RuleSelection) -> list[AccessRule]:
        loop = asyncio.get_running_loop()
        (removed,) = await loop.run_in_executor(None, self._rules.remove, [filter_of(selection)])
        return [shown_rule(rule) for rule in removed]
