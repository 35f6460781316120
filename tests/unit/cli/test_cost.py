"""What a history costs, checked against sums done by hand."""

import json

import pytest
from click.testing import CliRunner

from firnmq.cli import main
from firnmq.errors import InvalidArgument
from firnmq.tiering.cost import (
    DAYS_PER_MONTH,
    GB,
    MonthlyCost,
    Prices,
    Workload,
    monthly_cost,
)

TB = 1000 * GB
YEAR = Workload(bytes_per_day=TB, retention_days=365)
FREE = Prices(local_gb_month=0, store_gb_month=0, write_1000=0, read_1000=0, read_gb=0)


def test_a_terabyte_a_day_for_a_year() -> None:
    found = monthly_cost(YEAR, Prices())
    assert found.history_bytes == 365 * TB
    # 365 TB, three copies, disks filled to 70 %, 80 dollars a terabyte.
    assert found.local_only == pytest.approx(365 * 3 / 0.7 * 80)
    # A week of it locally, all of it in the store.
    assert found.tiered_local == pytest.approx(7 * 3 / 0.7 * 80)
    assert found.store_capacity == pytest.approx(365 * 23)
    assert 10_000 < found.tiered < 11_000
    assert 0.9 < found.saved_share < 0.95


def test_requests_are_counted() -> None:
    workload = Workload(
        bytes_per_day=1024**3, retention_days=30, segment_bytes=1024**3, cold_read_share=0
    )
    found = monthly_cost(workload, Prices(write_1000=1000, read_1000=0))
    # A segment a day: 128 parts of 8 MiB, begin, complete, index, manifest.
    assert found.write_requests == pytest.approx(DAYS_PER_MONTH * 132)
    assert found.write == pytest.approx(DAYS_PER_MONTH * 132)
    read = monthly_cost(
        Workload(bytes_per_day=1024**3, retention_days=30, cold_read_share=2),
        Prices(read_1000=1000, read_gb=0.09),
    )
    # 60 GiB in chunks of 4 MiB, and eight looks per segment.
    assert read.read_requests == pytest.approx(60 * 256 + DAYS_PER_MONTH * 8)
    assert read.read == pytest.approx(read.read_requests + 60 * 1024**3 / GB * 0.09)


def test_every_price_counts_alone() -> None:
    assert monthly_cost(YEAR, FREE).tiered == 0
    for name, parts in {
        "local_gb_month": ("local_only", "tiered_local"),
        "store_gb_month": ("store_capacity",),
        "write_1000": ("write",),
        "read_1000": ("read",),
        "read_gb": ("read",),
    }.items():
        costs = {"local_gb_month": 0.0, "store_gb_month": 0.0, "write_1000": 0.0, "read_1000": 0.0}
        found = monthly_cost(YEAR, Prices(**{**costs, name: 1.0}))
        money = ("local_only", "tiered_local", "store_capacity", "write", "read")
        assert {each for each in money if getattr(found, each) > 0} == set(parts)


def test_local_days_beyond_the_retention_count_no_more() -> None:
    short = Workload(bytes_per_day=TB, retention_days=3, local_days=7)
    found = monthly_cost(short, Prices())
    assert found.tiered_local == found.local_only
    assert found.saved_share < 0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Workload(bytes_per_day=0, retention_days=1), "bytes_per_day"),
        (lambda: Workload(bytes_per_day=1, retention_days=-1), "retention_days"),
        (lambda: Workload(bytes_per_day=1, retention_days=1, replicas=0), "replicas"),
        (lambda: Workload(bytes_per_day=1, retention_days=1, local_days=-1), "local_days"),
        (lambda: Workload(bytes_per_day=float("nan"), retention_days=1), "bytes_per_day"),
        (lambda: Prices(store_gb_month=-1), "store_gb_month"),
        (lambda: Prices(local_fill=0), "local_fill"),
        (lambda: Prices(local_fill=1.1), "local_fill"),
    ],
)
def test_inputs_that_cannot_be_meant(make, name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        make()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["tier", "cost", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_what_the_model_says() -> None:
    found: MonthlyCost = monthly_cost(YEAR, Prices())
    document = json.loads(run("--json"))
    assert document["month"]["local_only"] == pytest.approx(found.local_only)
    assert document["tiered"] == pytest.approx(found.tiered)
    assert document["saved_share"] == pytest.approx(found.saved_share)
    text = run()
    assert "365 TB of history" in text
    assert f"{found.tiered:,.2f}" in text


def test_every_option_reaches_the_model() -> None:
    plain = json.loads(run("--json"))
    changes = {
        "--per-day": "2TiB",
        "--retention-days": "100",
        "--local-days": "1",
        "--replicas": "2",
        "--segment": "128MiB",
        "--cold-read-share": "0.5",
        "--local-price": "0.1",
        "--local-fill": "0.5",
        "--store-price": "0.01",
        "--write-price": "0.01",
        "--read-price": "0.001",
        "--traffic-price": "0.09",
    }
    for option, value in changes.items():
        assert json.loads(run("--json", option, value))["month"] != plain["month"], option
    per_day = json.loads(run("--json", "--per-day", "2TiB"))["workload"]["bytes_per_day"]
    assert per_day == 2 * 2**40


@pytest.mark.parametrize("size", ["much", "1XB", "-1TB", ""])
def test_sizes_that_are_none(size: str) -> None:
    result = CliRunner().invoke(main, ["tier", "cost", "--per-day", size])
    assert result.exit_code == 2
    assert "no size" in result.output
