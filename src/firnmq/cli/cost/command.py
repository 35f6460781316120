"""`firn tier cost`: what a topic's history costs a month, locally and tiered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from firnmq.cli.console import json_option, print_json, print_table
from firnmq.cli.target import chosen_node, opened, target_options
from firnmq.cli.topic_argument import topic_argument

if TYPE_CHECKING:
    from firnmq.tiering.cost import MonthlyCost, Prices, Workload

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BINARY_UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50}
_DAY_MS = 24 * 3600 * 1000
_AGE_MS_MIN = 3600 * 1000
"""A rate from less than an hour says nothing about a day."""


class SizeType(click.ParamType[float]):
    """A number of bytes such as 1TB, 250GiB or 1000000."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
        unit = None if found is None else {**_UNITS, **_BINARY_UNITS}.get(found.group(2).upper())
        if found is None or unit is None:
            self.fail(f"{value!r} is no size such as 1TB, 250GiB or 1000000", param, ctx)
        return float(found.group(1)) * unit


def _number(name: str, default: float, text: str) -> Callable[[F], F]:
    return click.option(name, type=float, default=default, show_default=True, help=text)


@click.command()
@topic_argument(required=False)
@click.option("--per-day", type=SizeType(), help="Bytes written a day.  [default: 1TB]")
@click.option("--retention-days", type=float, help="How long they are kept.  [default: 365]")
@click.option("--local-days", type=float, help="How long on local disks.  [default: 7]")
@click.option("--replicas", type=int, default=3, show_default=True, help="Local copies.")
@click.option("--segment", type=SizeType(), default="1GiB", show_default=True, help="Segment size.")
@_number("--cold-read-share", 0.1, "Part of the history read from the store in a month.")
@_number("--local-price", 0.08, "Local disk, GB-month.")
@_number("--local-fill", 0.7, "Part of local disks that may be filled.")
@_number("--store-price", 0.023, "Store, GB-month.")
@_number("--write-price", 0.005, "1,000 requests that write.")
@_number("--read-price", 0.0004, "1,000 requests that read.")
@_number("--traffic-price", 0.0, "GB read out of the store.")
@target_options
@json_option
def cost(
    topic: str | None,
    per_day: float | None,
    retention_days: float | None,
    local_days: float | None,
    replicas: int,
    segment: float,
    cold_read_share: float,
    local_price: float,
    local_fill: float,
    store_price: float,
    write_price: float,
    read_price: float,
    traffic_price: float,
    as_json: bool,
) -> None:
    """Show what a history costs a month on local disks alone, and with an object store.

    With TOPIC, the bytes per day are those of its segments, and the retention is that of its
    options, unless an option of this command says otherwise. All prices are in one currency, and a
    GB is 10^9 bytes. The default prices are a large provider's list prices in US dollars.
    """
    from firnmq.tiering.cost import Prices, Workload, monthly_cost

    known = _known_of(topic, needs_rate=per_day is None) if topic is not None else {}
    inputs = {
        "bytes_per_day": _chosen(per_day, known.get("per_day"), 1e12),
        "retention_days": _chosen(retention_days, known.get("retention_days"), 365.0),
        "local_days": _chosen(local_days, known.get("local_days"), 7.0),
    }
    workload = Workload(
        **{name: each.value for name, each in inputs.items()},
        replicas=replicas,
        segment_bytes=int(segment),
        cold_read_share=cold_read_share,
    )
    prices = Prices(
        local_gb_month=local_price,
        local_fill=local_fill,
        store_gb_month=store_price,
        write_1000=write_price,
        read_1000=read_price,
        read_gb=traffic_price,
    )
    found = monthly_cost(workload, prices)
    if as_json:
        print_json(
            {
                "topic": topic,
                "workload": workload,
                "sources": {name: each.source for name, each in inputs.items()},
                "prices": prices,
                "month": found,
                "tiered": found.tiered,
                "saved_share": found.saved_share,
            }
        )
    else:
        for line in _assumptions(inputs, topic, workload, prices):
            click.echo(line)
        click.echo()
        _show(workload, found)


class _Input(NamedTuple):
    """A number and its source: `option`, `topic` or `default`."""

    value: float
    source: str


def _chosen(given: float | None, known: float | None, default: float) -> _Input:
    if given is not None:
        return _Input(given, "option")
    return _Input(default, "default") if known is None else _Input(known, "topic")


def _assumptions(
    inputs: dict[str, _Input], topic: str | None, workload: Workload, prices: Prices
) -> Iterator[str]:
    """The inputs of the model, line by line; a default is marked as assumed."""
    rows = {
        "bytes_per_day": ("--per-day", f"written a day by the segments of {topic}", None),
        "retention_days": ("--retention-days", f"retention.ms of {topic}", "retention.ms"),
        "local_days": ("--local-days", f"local.retention.ms of {topic}", "local.retention.ms"),
    }
    for name, (value, source) in inputs.items():
        option, found, setting = rows[name]
        text = _size(value) if name == "bytes_per_day" else f"{value:g} days"
        missing = f"{topic} has no {setting}" if topic and setting else "nothing is given"
        assumed = f"ASSUMED, {missing}; {option} says otherwise"
        reason = {"option": option, "topic": found, "default": assumed}[source]
        yield f"{name.replace('_', ' '):<15}{text} ({reason})"
    yield (
        f"{'also':<15}{workload.replicas} local copies, disks filled to {prices.local_fill:.0%}, "
        f"segments of {_size(workload.segment_bytes)}, {workload.cold_read_share:.0%} of the "
        "history read from the store in a month"
    )
    yield (
        f"{'prices':<15}GB-month {prices.local_gb_month:g} locally, {prices.store_gb_month:g} in "
        f"the store; 1,000 writes {prices.write_1000:g}, reads {prices.read_1000:g}; GB read out "
        f"{prices.read_gb:g}"
    )


def _known_of(topic: str, *, needs_rate: bool) -> dict[str, float | None]:
    """Retention and write rate from a topic's options and segments."""
    from time import time_ns

    from firnmq.cli.commands.segments import segment_rows
    from firnmq.errors import InvalidArgument

    node = chosen_node(changes=False)
    if node is not None:
        options = node.get("topics", topic)["options"]
        rows = node.get("topics", topic, "segments")
    else:
        with opened() as store:
            options = store.topic(topic).topic.config.options()
        rows = segment_rows(topic, None)
    known = {
        "retention_days": _days(options.get("retention.ms")),
        "local_days": _days(options.get("local.retention.ms")),
        "per_day": None,
    }
    if needs_rate:
        now_ms = time_ns() // 1_000_000
        age_ms = now_ms - min((row["created_ms"] for row in rows), default=now_ms)
        written = sum(row["length_bytes"] for row in rows)
        if age_ms < _AGE_MS_MIN or not written:
            raise InvalidArgument(
                "topic", f"{topic!r} holds less than an hour of records; give --per-day"
            )
        known["per_day"] = written * _DAY_MS / age_ms
    return known


def _days(limit_ms: str | None) -> float | None:
    """None where there is no limit."""
    return (
        None if limit_ms is None or limit_ms == "" or int(limit_ms) < 0 else int(limit_ms) / _DAY_MS
    )


def _show(workload: Workload, found: MonthlyCost) -> None:
    click.echo(
        f"{_size(workload.bytes_per_day)} a day kept {workload.retention_days:g} days: "
        f"{_size(found.history_bytes)} of history, per month:"
    )
    print_table(
        ("WHAT", "HELD OR DONE", "COST"),
        [
            (
                f"local disks alone, {workload.replicas} copies",
                _size(found.local_only_bytes),
                _money(found.local_only),
            ),
            (
                f"tiered: {workload.local_days:g} days on local disks",
                _size(found.tiered_local_bytes),
                _money(found.tiered_local),
            ),
            ("tiered: object store", _size(found.store_bytes), _money(found.store_capacity)),
            ("tiered: writing", f"{found.write_requests:,.0f} requests", _money(found.write)),
            ("tiered: reading", f"{found.read_requests:,.0f} requests", _money(found.read)),
            ("tiered: together", "", _money(found.tiered)),
        ],
    )
    verb = "saved" if found.saved_share >= 0 else "MORE than local disks alone"
    click.echo(
        f"{abs(found.saved_share):.1%} {verb}; a year: {_money(12 * found.local_only)} locally, "
        f"{_money(12 * found.tiered)} tiered"
    )


def _size(count: float) -> str:
    for unit in ("PB", "TB", "GB", "MB", "KB"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:,.4g} {unit}"
    return f"{count:,.0f} bytes"


def _money(amount: float) -> str:
    return f"{amount:,.2f}"
