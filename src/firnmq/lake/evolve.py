"""A typed table and a newer schema: columns are added before the first file that has them.

Adding is a commit of its own. Files from before do not have the columns and show null there; a
sync that still runs with the older schema goes on adding files without them.
"""

from __future__ import annotations

import random
import time
from typing import Final

import pyarrow as pa

from firnmq.eventlog import EventLogger
from firnmq.lake.table import CommitGivenUp, TopicTable
from firnmq.lake.typed.evolution import Addition, additions

_ATTEMPTS: Final = 20
_WAIT_S: Final = 0.05
_WAIT_S_MAX: Final = 2.0

_log = EventLogger("lake.evolve")


def add_columns(table: TopicTable, wanted: pa.Schema) -> list[Addition]:
    """Gives the table what it lacks of the columns, and says what that was.

    Raises SchemaConflict, and changes nothing, where the table has a column that is not wanted, or
    not with that type. Several may do it at once.
    """
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        ServiceUnavailableError,
    )
    from sqlalchemy.exc import OperationalError

    reason = ""
    for number in range(_ATTEMPTS):
        if number:
            wait_s = min(_WAIT_S * 2**number, _WAIT_S_MAX)
            time.sleep(wait_s * random.uniform(0.5, 1.0))
        try:
            missing = missing_columns(table.reload(), wanted)
            if not missing:
                return []
            with table.iceberg.update_schema() as update:
                update.union_by_name(wanted)
        except (
            *(CommitFailedException, CommitStateUnknownException),
            *(ServiceUnavailableError, OperationalError),
        ) as error:
            # Somebody else has committed. If it was these columns, nothing is missing any more.
            reason = str(error)
            continue
        table.reload()
        names = ", ".join(each.name for each in missing)
        _log.info("columns_added", table=table.name, columns=names)
        return missing
    raise CommitGivenUp(table.name, _ATTEMPTS, reason)


def missing_columns(table: TopicTable, wanted: pa.Schema) -> list[Addition]:
    """What the table lacks. Raises SchemaConflict."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    existing = schema_to_pyarrow(table.iceberg.schema(), include_field_ids=False)
    return additions(existing, wanted)
