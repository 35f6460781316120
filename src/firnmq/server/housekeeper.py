"""The thread for periodic work: retention, rolling by age, syncing the index log."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from firnmq.errors import FirnError, StorageFailed
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.server.local import LocalStore

_log = EventLogger("housekeeper")


class Housekeeper:
    """Runs from its creation until it is stopped; a failed round does not end it."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firn-housekeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        config = self._store.config
        rounds_per_upkeep = max(config.housekeeping_ms // config.state_sync_ms, 1)
        rounds = 0
        while not self._stopping.wait(config.state_sync_ms / 1000):
            rounds += 1
            self._do("state_sync_failed", self._store.kv.sync_late)
            self._do("disk_check_failed", self._store.guard.look)
            self._do("load_report_failed", self._store.report_load)
            if rounds % rounds_per_upkeep == 0:
                self._do("housekeeping_failed", self._upkeep)

    def _upkeep(self) -> None:
        self._store.housekeep(self._stopping.is_set)

    def _do(self, event: str, work: object) -> None:
        assert callable(work)
        try:
            work()
        except StorageFailed:
            return  # The store's health has it.
        except (FirnError, OSError) as error:
            _log.error(event, error=str(error))
        except Exception as defect:  # Supervisor: the next round must still run.
            _log.error(event, error=repr(defect))
