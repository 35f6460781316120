"""Users of the Kafka listener, as the HTTP listener offers them."""

from __future__ import annotations

import asyncio

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.security import UserStore
from firnmq.server.documents import User, UserChanged


class UserAdmin:
    """Changes are synced and hashing takes milliseconds, so threads do them."""

    def __init__(self, users: UserStore, broker: KafkaBroker) -> None:
        self._users = users
        self._broker = broker

    def all(self) -> list[User]:
        return [User(user=name) for name in self._users.names()]

    async def put(self, name: str, password: str) -> UserChanged:
        loop = asyncio.get_running_loop()
        is_new = await loop.run_in_executor(None, self._users.put, name, password)
        return UserChanged(user=name, change="added" if is_new else "changed")

    async def remove(self, name: str) -> UserChanged:
        await asyncio.get_running_loop().run_in_executor(None, self._users.remove, name)
        self._broker.close_user(name)
        return UserChanged(user=name, change="removed")
