"""The processes of a group's members, and waiting for what they say."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

WAIT_TIMEOUT_S = 120
"""Only a test that fails waits for so long; where the machine is busy, seconds pass unnoticed."""

LIFE_CHECK_S = 1
"""How soon a wait notices that a member's process has ended."""


class Member:
    """One consumer process."""

    def __init__(self, crew: Crew, client: str, extra: Sequence[str]) -> None:
        self._crew = crew
        self._is_wanted = True
        self.assigned: list[int] = []
        self.assignments: list[list[int]] = []
        """Every assignment it ever had, in order."""
        self.records: list[tuple[int, int, str]] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.integration.kafka.member"),
                *(client, crew.address, crew.group, crew.topic, *extra),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._listeners = [
            threading.Thread(target=self._listen),
            threading.Thread(target=self._keep_errors),
        ]
        self._errors: list[str] = []
        for listener in self._listeners:
            listener.start()

    def leave(self) -> None:
        self._is_wanted = False
        self._end(signal.SIGTERM)

    def crash(self) -> None:
        self._is_wanted = False
        self._end(signal.SIGKILL)

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended though nobody told it to."""
        return self._is_wanted and self._process.poll() is not None

    @property
    def errors(self) -> str:
        return "".join(self._errors[-30:])

    def _end(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(WAIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise
        for listener in self._listeners:
            listener.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self.assigned = []

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._crew.changed:
                if "assigned" in event:
                    self.assigned = event["assigned"]
                    self.assignments.append(self.assigned)
                else:
                    partition, offset, value = event["record"]
                    self.records.append((partition, offset, value))
                self._crew.changed.notify_all()

    def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


class Crew:
    """The members of one group. A context manager: nobody outlives it."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.address = address
        self.group = group
        self.topic = topic
        self.changed = threading.Condition()
        self._members: list[Member] = []

    def join(self, client: str, *extra: str) -> Member:
        member = Member(self, client, extra)
        self._members.append(member)
        return member

    def wait(self, condition: Callable[[], bool]) -> None:
        """Returns when the members' words make the condition true."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        with self.changed:
            while not condition():
                left_s = deadline - time.monotonic()
                assert left_s > 0, self._describe()
                assert not any(member.is_lost for member in self._members), self._describe()
                self.changed.wait(min(left_s, LIFE_CHECK_S))

    def wait_sizes(self, partitions: int, *sizes: tuple[Member, int]) -> None:
        """Returns when the members share all partitions with so many each."""

        def is_shared() -> bool:
            held = sorted(index for member, _ in sizes for index in member.assigned)
            return held == list(range(partitions)) and all(
                len(member.assigned) == size for member, size in sizes
            )

        self.wait(is_shared)

    def values(self) -> list[str]:
        return [value for member in self._members for _, _, value in member.records]

    def _describe(self) -> str:
        return "\n".join(
            f"assigned {member.assignments}, {len(member.records)} records; {member.errors}"
            for member in self._members
        )

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self._members:
            member.crash()
