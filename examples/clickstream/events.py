"""What visitors of a shop for mountain gear do: sessions of views, carts and purchases.

Everything follows from a seed. Traffic has a rhythm of hours, weekdays and seasons; a small part of
the events is broken, in ways that real ones are.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
BROKEN_SHARE = 1 / 500
COUNTRIES = {"CH": 30, "AT": 18, "DE": 25, "FR": 12, "IT": 10, "NO": 5}


class Product(NamedTuple):
    product: str
    category: str
    price: float
    season: float
    """Month of the year around which it sells best, 0 to 12."""


PRODUCTS = (
    Product("rope-60", "climbing", 189.0, 6.5),
    Product("harness", "climbing", 79.9, 6.0),
    Product("quickdraws", "climbing", 99.0, 6.5),
    Product("helmet", "climbing", 64.5, 5.5),
    Product("ski-touring", "snow", 649.0, 0.5),
    Product("skins", "snow", 149.0, 0.0),
    Product("avalanche-beacon", "snow", 329.0, 11.5),
    Product("shovel", "snow", 54.9, 0.0),
    Product("tent-2p", "camping", 399.0, 7.0),
    Product("sleeping-bag", "camping", 249.0, 6.0),
    Product("stove", "camping", 69.0, 7.5),
    Product("headlamp", "camping", 44.9, 10.5),
    Product("boots", "footwear", 229.0, 5.0),
    Product("trail-shoes", "footwear", 139.0, 4.5),
    Product("gaiters", "footwear", 39.9, 11.0),
)


class Event(NamedTuple):
    timestamp_ms: int
    user: str
    value: bytes
    is_broken: bool


def year(count: int, end_ms: int, seed: int = 7) -> Iterator[Event]:
    """About so many events of the year before `end_ms`, in the order of time."""
    dice = random.Random(seed)
    start_ms = end_ms - 365 * DAY_MS
    hours = range(365 * 24)
    weights = [_traffic(start_ms + hour * HOUR_MS) for hour in hours]
    sessions = dice.choices(hours, weights, k=max(1, count // 5))
    events = []
    for hour in sessions:
        events += session(start_ms + hour * HOUR_MS + dice.randrange(HOUR_MS), dice)
    events.sort()
    yield from (event for event in events if event.timestamp_ms < end_ms)


def session(start_ms: int, dice: random.Random) -> list[Event]:
    """One visit: some views, sometimes a cart, now and then a purchase."""
    user = f"u{int(dice.paretovariate(0.9)) % 50_000:05d}"
    visit = f"{dice.getrandbits(48):012x}"
    country = dice.choices(list(COUNTRIES), list(COUNTRIES.values()))[0]
    products = dice.choices(PRODUCTS, [_appeal(each, start_ms) for each in PRODUCTS], k=3)
    kinds = ["view"] * dice.randint(1, 6)
    if dice.random() < 0.35:
        kinds += ["cart", "view"]
        if dice.random() < 0.55:
            kinds.append("purchase")
    events, at_ms = [], start_ms
    for kind in kinds:
        content = {
            "event": kind,
            "at": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "user": user,
            "session": visit,
            "country": country,
            "product": dice.choice(products).product,
            "quantity": dice.choice((1, 1, 1, 2)) if kind != "view" else 0,
        }
        is_broken = dice.random() < BROKEN_SHARE
        value = _broken(content, dice) if is_broken else json.dumps(content).encode()
        events.append(Event(at_ms, user, value, is_broken))
        at_ms += dice.randint(3_000, 60_000)
    return events


def _traffic(time_ms: int) -> float:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    hour = 1.2 + math.sin((moment.hour - 14) / 24 * 2 * math.pi)
    weekend = 1.5 if moment.weekday() >= 5 else 1.0
    christmas = 2.2 if (moment.month, moment.day) > (11, 22) and moment.day < 24 else 1.0
    return hour * weekend * christmas


def _appeal(product: Product, time_ms: int) -> float:
    month = datetime.fromtimestamp(time_ms / 1000, UTC).timetuple().tm_yday / 30.5
    return 1.3 + math.cos((month - product.season) / 12 * 2 * math.pi)


def _broken(content: dict[str, object], dice: random.Random) -> bytes:
    match dice.randrange(4):
        case 0:  # The connection broke in the middle.
            text = json.dumps(content)
            return text[: dice.randrange(10, len(text) - 10)].encode()
        case 1:  # An app of last year.
            return json.dumps({**content, "quantity": "two"}).encode()
        case 2:
            return json.dumps({key: content[key] for key in ("event", "user")}).encode()
        case _:
            return b"<html>502 Bad Gateway</html>"
