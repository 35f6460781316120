"""The embedded store against SQLite, used as its users would for the same purpose."""

import itertools
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa

import firnmq
from benchmarks.harness import Bar, Measured, Run, benchmark
from benchmarks.workload import BATCH_RECORDS, WRITER_COUNT, fresh_directory, run_threads, values
from firnmq import NewRecord

_BATCHES_PER_WRITER = 10
_RECORD_COUNT = WRITER_COUNT * _BATCHES_PER_WRITER * BATCH_RECORDS
_BUSY_TIMEOUT_S = 120
_TABLE = """create table log (
    "offset" integer primary key autoincrement, timestamp_ms integer, key blob, value blob
)"""
_INSERT = "insert into log (timestamp_ms, key, value) values (?, ?, ?)"
_SELECT = 'select "offset", timestamp_ms, key, value from log order by "offset"'


@benchmark("embedded_vs_sqlite", unit="records/s", bar=Bar.ratio_at_least(3))
def embedded_vs_sqlite(run: Run) -> Measured:
    """Durable appends of 1 KiB records by 64 threads in batches of 100, then reading all back.

    SQLite: WAL, synchronous=FULL, a connection per thread, one transaction per batch; reading is
    a select into columns of an Arrow table. The ratio is the smaller one of the two; value and
    baseline are of the appends.
    """
    directory = run.scratch()
    numbers = itertools.count()
    given = [values(BATCH_RECORDS, seed=number) for number in range(WRITER_COUNT)]
    records = [[NewRecord(value=value) for value in part] for part in given]
    rows = [[(1, None, value) for value in part] for part in given]
    readings: dict[str, list[float]] = {"ours": [], "sqlite": []}

    def ours() -> float:
        with fresh_directory(directory, f"round-{next(numbers)}") as path:
            with firnmq.open(path) as store:
                topic = store.create_topic("t")

                def write(number: int) -> None:
                    for _ in range(_BATCHES_PER_WRITER):
                        topic.append(records[number])

                seconds = run_threads(write, WRITER_COUNT)
            readings["ours"].append(_read_ours(path))
        return _RECORD_COUNT / seconds

    def sqlite() -> float:
        with fresh_directory(directory, f"round-{next(numbers)}") as path:
            with closing(_connect(path)) as connection:
                connection.execute(_TABLE)

            def write(number: int) -> None:
                with closing(_connect(path)) as connection:
                    for _ in range(_BATCHES_PER_WRITER):
                        connection.execute("begin immediate")
                        connection.executemany(_INSERT, rows[number])
                        connection.execute("commit")

            seconds = run_threads(write, WRITER_COUNT)
            readings["sqlite"].append(_read_sqlite(path))
        return _RECORD_COUNT / seconds

    appends = run.alternate(ours=ours, baseline=sqlite)
    # The warm-up round's readings are left out.
    reading = run.alternate(
        ours=iter(readings["ours"][1:]).__next__,
        baseline=iter(readings["sqlite"][1:]).__next__,
        warmups=0,
    )
    append_ratio, read_ratio = appends.ratio or 0, reading.ratio or 0
    return Measured(
        value=appends.value,
        baseline=appends.baseline,
        ratio=min(append_ratio, read_ratio),
        extra={
            **appends.extra,
            "append_ratio": append_ratio,
            "read_ratio": read_ratio,
            "read_rows_s": reading.value,
            "sqlite_read_rows_s": reading.baseline or 0,
        },
    )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path / "log.db", timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    return connection


def _read_ours(path: Path) -> float:
    """Rows per second of reading the whole topic as one Arrow table."""
    with firnmq.open(path) as store:
        topic = store.topic("t")
        topic.status()  # Opens the shard, as connecting does below.
        started = time.perf_counter()
        tables, offset = [], 0
        while True:
            page = topic.read(offset, max_records=100_000)
            if page.next_offset == offset:
                break
            tables.append(page.to_arrow())
            offset = page.next_offset
        table = pa.concat_tables(tables)
        assert table.num_rows == _RECORD_COUNT
        return _RECORD_COUNT / (time.perf_counter() - started)


def _read_sqlite(path: Path) -> float:
    with closing(_connect(path)) as connection:
        started = time.perf_counter()
        columns = zip(*connection.execute(_SELECT).fetchall(), strict=True)
        names = ("offset", "timestamp_ms", "key", "value")
        types = (pa.int64(), pa.int64(), pa.binary(), pa.binary())
        arrays = [pa.array(column, type=kind) for column, kind in zip(columns, types, strict=True)]
        table = pa.table(dict(zip(names, arrays, strict=True)))
        assert table.num_rows == _RECORD_COUNT
        return _RECORD_COUNT / (time.perf_counter() - started)
