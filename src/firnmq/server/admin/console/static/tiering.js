// The object store: what is there, what waits and why, and what history costs.

import { change, get, may } from "./api.js";
import { address, h, replace } from "./dom.js";
import { ago, bytes, count, duration, some, time } from "./format.js";
import { badge, card, failure, field, heading, run, table, tile, topicLink } from "./widgets.js";

const MONEY = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export async function view(context) {
  const { query, signal } = context;
  const box = h("div");
  const cost = h("div", { class: "below-cards" });
  let status = null;
  try {
    status = await get("/v1/tier", {}, signal);
  } catch (error) {
    if (error.kind !== "NoTiering") throw error;
  }
  if (status) showStatus(box, status, context);
  else replace(box, h("p", { class: "card" }, "The node has no object store: all history stays on its disk. The section ", h("code", {}, "[tiering]"), " of its configuration names one."));
  await showCost(cost, query, context);
  return { title: "Tiering", element: h("div", {}, heading("Tiering"), box, cost) };
}

function showStatus(box, status, { again }) {
  const outcome = h("div");
  const upload = h("button", { type: "button", onclick: () => run(upload, outcome, async () => {
    const found = await change("POST", "/v1/tier/upload", {});
    again();
    return `${some(found.segment_count, "segment")} will be uploaded now.`;
  }) }, "Upload what waits");
  const seal = h("button", { type: "button", onclick: () => run(seal, outcome, async () => {
    const found = await change("POST", "/v1/tier/upload", { roll: true });
    again();
    return `${some(found.segment_count, "segment")} will be uploaded now.`;
  }) }, "Seal and upload everything");
  const scrub = h("button", { type: "button", onclick: () => run(scrub, outcome, async () => {
    const found = await change("POST", "/v1/tier/scrub", { dry_run: true });
    return `Compared: ${some(found.orphans.length, "orphan")}, ${some(found.missing.length, "object")} missing. Nothing was changed.`;
  }) }, "Compare with the store");
  const isWell = status.state === "ok" || status.state === "unknown";
  replace(box,
    status.last_error && !isWell ? h("p", { class: "state bad" }, `${status.state}: ${status.last_error}`, h("span", { class: "quiet" }, ` ${ago(status.last_error_ms)}, next attempt in ${duration(status.retry_in_ms)}`)) : null,
    status.is_holding_appends ? h("p", { class: "state bad" }, "Appends to tiered topics are refused until uploads have caught up.") : null,
    h("dl", { class: "tiles" },
      tile("Object store", status.state, status.url, isWell ? "" : "bad"),
      tile("In the store", bytes(status.tiered_bytes), some(status.tiered_segments, "segment")),
      tile("Of that also here", bytes(status.local_bytes), some(status.local_segments, "segment")),
      tile("Only in the store", bytes(status.tiered_bytes - status.local_bytes), some(status.tiered_segments - status.local_segments, "segment")),
      tile("Waits", bytes(status.waiting_bytes), some(status.waiting_segments, "segment")),
      tile("Oldest is late by", duration(status.lag_ms), status.uploading_segments ? `${count(status.uploading_segments)} under way` : null),
      tile("Cold reads", bytes(status.cache.fetched_bytes), `${count(status.cache.fetch_count)} fetches, ${bytes(status.cache.disk_bytes)} cached`)),
    may("operate") ? h("div", { class: "buttons after" }, upload, seal, scrub) : null, outcome,
    card("What waits, and why", table("What waits", [
      { name: "Topic", cell: (row) => topicLink(row.topic, ["segments"], { place: "sealed" }) },
      { name: "Segment", cell: (row) => `${row.shard.split("_").at(-1)} / ${row.segment_seq}` },
      { name: "Size", number: true, cell: (row) => bytes(row.length_bytes) },
      { name: "Sealed", cell: (row) => h("span", { title: time(row.sealed_ms) }, ago(row.sealed_ms)) },
      { name: "Attempts", number: true, cell: (row) => count(row.attempt_count) },
      { name: "Why", cell: (row) => row.why },
    ], status.waiting, { empty: "Nothing waits: all sealed segments of tiered topics are in the store." }),
    status.waiting_segments > status.waiting.length ? h("p", { class: "quiet" }, `The oldest ${count(status.waiting.length)} of ${count(status.waiting_segments)}.`) : null),
    card("Topics", topicsOf(status)));
}

const TOPICS_MAX = 200;

function topicsOf(status) {
  const filter = h("input", { type: "search", class: "filter", placeholder: "Filter by name", "aria-label": "Filter by name" });
  const box = h("div");
  const draw = () => {
    const rows = status.topics.filter((each) => each.topic.toLowerCase().includes(filter.value.toLowerCase()) && (each.is_tiered || each.tiered_segments));
    replace(box, table("Topics in the store", [
      { name: "Topic", cell: (row) => topicLink(row.topic, ["map"]) },
      { name: "Tiering", cell: (row) => row.is_tiered ? badge("on", "good") : badge("off") },
      { name: "In the store", number: true, cell: (row) => bytes(row.tiered_bytes) },
      { name: "Only there", number: true, cell: (row) => h("a", { href: address(["topics", row.topic, "segments"], { place: "store" }) }, bytes(row.tiered_bytes - row.local_bytes)) },
      { name: "Waits", number: true, cell: (row) => bytes(row.waiting_bytes) },
      { name: "Cost", cell: (row) => h("a", { href: address(["tiering"], { topic: row.topic }), "aria-label": `a month of ${row.topic}` }, "a month") },
    ], rows.slice(0, TOPICS_MAX), { empty: "No topic is tiered. The option tiering=on makes one." }),
    rows.length > TOPICS_MAX ? h("p", { class: "quiet" }, `The first ${count(TOPICS_MAX)} of ${count(rows.length)}; the filter finds others.`) : null);
  };
  filter.addEventListener("input", draw);
  draw();
  return [h("div", { class: "listbar" }, filter), box];
}

const LABELS = {
  bytes_per_day: ["Written a day", "GB", 1e9], retention_days: ["Kept for", "days", 1], local_days: ["On local disks for", "days", 1],
  replicas: ["Local copies", "", 1], segment_bytes: ["Segment size", "MB", 1e6], cold_read_share: ["Read again a month", "% of the history", 0.01],
  local_gb_month: ["Local disk", "a GB-month", 1], local_fill: ["Disks filled to", "%", 0.01], store_gb_month: ["Store", "a GB-month", 1],
  write_1000: ["1,000 writes", "", 1], read_1000: ["1,000 reads", "", 1], read_gb: ["Read out", "a GB", 1],
};

/** What the estimate is made from, in one sentence. */
function basis(found) {
  const of = Object.fromEntries(found.inputs.map((each) => [each.name, each]));
  const how = {
    given: "given below", measured: `measured over ${duration(found.measured_ms)}`, option: "the topic's option", assumed: "assumed",
  };
  const shownDays = (each) => `${some(Number(each.value.toPrecision(3)), "day")} (${how[each.source]})`;
  return `For ${bytes(of.bytes_per_day.value)} written a day (${how[of.bytes_per_day.source]}), kept for ${shownDays(of.retention_days)}, of that ${
    shownDays(of.local_days)} on local disks, with ${count(of.replicas.value)} copies there.`;
}

async function showCost(box, query, { signal, go }) {
  const given = Object.fromEntries(["topic", ...Object.keys(LABELS)].filter((name) => query.has(name)).map((name) => [name, query.get(name)]));
  let found;
  try {
    found = await get("/v1/tier/cost", given, signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    replace(box, card("What history costs", failure(error)));
    return;
  }
  const inputs = new Map();
  const fields = found.inputs.map((each) => {
    const [name, unit, scale] = LABELS[each.name];
    const input = h("input", { type: "number", step: "any", min: 0, value: String(Number((each.value / scale).toPrecision(6))) });
    inputs.set(each.name, [input, scale, each, input.value]);
    return field(`${name}${unit ? ` (${unit})` : ""}`, input, { given: "given here", measured: "measured", option: "the topic's option", assumed: "assumed" }[each.source]);
  });
  const topic = h("input", { value: found.topic ?? "", placeholder: "all topics", autocomplete: "off", spellcheck: "false" });
  const month = found.month;
  const rows = [
    ["Local disks alone", bytes(month.local_only_bytes), month.local_only],
    ["With a store: local disks", bytes(month.tiered_local_bytes), month.tiered_local],
    ["With a store: objects", bytes(month.store_bytes), month.store_capacity],
    ["With a store: writing", `${count(month.write_requests)} requests`, month.write],
    ["With a store: reading", `${count(month.read_requests)} requests`, month.read],
    ["With a store: together", "", found.tiered],
  ];
  const share = Math.abs(found.saved_share * 100).toFixed(0);
  replace(box, card(`What ${found.topic ? `the history of ${found.topic}` : "history"} costs a month`,
    h("dl", { class: "tiles inner" },
      tile("Local disks alone", MONEY.format(month.local_only), "a month"),
      tile("With an object store", MONEY.format(found.tiered), "a month"),
      tile(found.saved_share >= 0 ? "Saved" : "More", `${share} %`, `a year: ${MONEY.format(12 * Math.abs(month.local_only - found.tiered))}`),
      tile("There now", bytes(found.held_bytes), `in the end: ${bytes(month.history_bytes)}`)),
    h("p", {}, basis(found)),
    h("p", { class: "quiet" }, "For a month, once the history has its full length, in the currency of the prices. The prices given at first are a large provider's list prices in US dollars."),
    table("Cost a month", [
      { name: "What", cell: (row) => row[0] },
      { name: "Held or done", number: true, cell: (row) => row[1] },
      { name: "Cost a month", number: true, cell: (row) => MONEY.format(row[2]) },
    ], rows),
    h("form", {
      class: "cost",
      onsubmit: (event) => {
        event.preventDefault();
        const wanted = { topic: topic.value };
        for (const [name, [input, scale, each, before]] of inputs) {
          if (input.value !== before || each.source === "given") wanted[name] = Number((Number(input.value) * scale).toPrecision(12));
        }
        go(address(["tiering"], wanted));
      },
    }, h("div", { class: "grid" }, field("Topic", topic, "all if empty"), ...fields),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Estimate"),
      h("a", { class: "button", href: address(["tiering"], { topic: found.topic ?? "" }) }, "Back to what was measured")))));
}
