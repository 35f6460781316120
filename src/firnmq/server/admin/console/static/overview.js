// The first page: is it well, how busy is it, what lags, what is large.

import { follow, get, whileVisible } from "./api.js";
import { chart } from "./chart.js";
import { address, h, replace } from "./dom.js";
import { ago, bytes, count, duration, forInput, rate, some, zone } from "./format.js";
import { badge, card, failure, field, groupLink, heading, select, table, tile, topicLink } from "./widgets.js";

export async function view({ signal, go }) {
  const health = h("div", { class: "health", role: "status" });
  const tiles = h("dl", { class: "tiles" });
  const traffic = chart("Traffic of Kafka clients", "B", [
    { name: "received", key: "received_bytes_rate", kind: "a" },
    { name: "sent", key: "sent_bytes_rate", kind: "b" },
  ]);
  const work = chart("Requests", "", [
    { name: "requests", key: "request_rate", kind: "a" },
    { name: "appends", key: "append_rate", kind: "b" },
  ]);
  const processor = chart("Processor time", "%", [{ name: "of a core", key: "cpu_share", kind: "a" }]);
  const lagging = h("div", {}, h("p", { class: "quiet" }, "Loading…"));
  const largest = h("div", {}, h("p", { class: "quiet" }, "Loading…"));
  let samples = [];
  let groups = null;
  let last = null;

  whileVisible(signal, (seen) => follow("/v1/overview/events", () => ({ since_ms: samples.at(-1)?.time_ms }), {
    signal: seen,
    event(found) {
      const seenMs = samples.at(-1)?.time_ms ?? 0;
      samples = [...samples, ...found.samples.filter((each) => each.time_ms > seenMs)].slice(-900);
      for (const each of [traffic, work, processor]) each.show(samples);
      replace(health, healthOf(found));
      last = found;
      replace(tiles, tilesOf(found, samples.at(-1), groups));
    },
    state(state, error) {
      if (state === "away") replace(health, h("p", { class: "state bad" }, "The node does not answer. ", h("span", { class: "quiet" }, "Trying again…")));
      if (state === "failed") replace(health, failure(error));
    },
  }));

  async function lists() {
    try {
      const [lags, topics] = await Promise.all([
        get("/v1/pages/groups", { sort: "lag", max: 6 }, signal),
        get("/v1/pages/topics", { sort: "length_bytes", max: 6 }, signal),
      ]);
      groups = lags;
      if (last) replace(tiles, tilesOf(last, samples.at(-1), groups));
      replace(lagging, lagsOf(groups));
      replace(largest, topicsOf(topics));
    } catch (error) {
      if (error.name !== "AbortError") replace(lagging, failure(error));
    }
  }
  lists();
  const timer = setInterval(() => document.hidden || lists(), 10_000);
  signal.addEventListener("abort", () => clearInterval(timer));

  return {
    element: h("div", {}, heading("Overview"), health, tiles,
      h("div", { class: "columns three" }, traffic.element, work.element, processor.element),
      h("div", { class: "columns" },
        h("div", {}, card("Groups with the greatest lag", lagging), card("Find records", findForm(go))),
        card("Largest topics", largest))),
  };
}

function healthOf({ status, readiness }) {
  const isWell = readiness.status === "ready" && !status.problems.length;
  const found = [h("p", { class: `state ${isWell ? "good" : "bad"}` },
    isWell ? "Everything works." : `The node is ${readiness.status}.`,
    readiness.reasons?.length ? ` ${readiness.reasons.join("; ")}.` : "")];
  if (status.problems.length) {
    found.push(table("Problems", [
      { name: "What", cell: (row) => row.subject },
      { name: "Problem", cell: (row) => badge(row.kind.replaceAll("_", " "), "bad") },
      { name: "Why", cell: (row) => row.reason },
      { name: "Effect", cell: (row) => row.effect },
      { name: "Since", cell: (row) => ago(row.since_ms) },
    ], status.problems));
  }
  for (const each of status.processes ?? []) {
    if (each.state !== "ready") found.push(h("p", { class: "state bad" }, `Process ${each.process} is ${each.state}.`));
  }
  return found;
}

function tilesOf({ status }, now, groups) {
  return [
    tile("Topics", h("a", { href: "/topics" }, count(status.topic_count)), some(status.shard_count, "shard")),
    tile("Groups", h("a", { href: "/groups" }, count(groups?.total ?? status.group_count)), groups ? `${count(groups.lagging)} with a lag` : null),
    tile("Free on the disk", bytes(status.disk_free_bytes), status.data),
    tile("Waiting appends", count(status.queued_requests), bytes(status.queued_bytes)),
    tile("Object store", status.tiering === null ? "none" : h("a", { href: "/tiering" }, status.tiering),
      h("a", { href: "/tiering" }, status.tiering === null ? "what one would cost" : "what history costs"), status.tiering && status.tiering !== "ok" && status.tiering !== "unknown" ? "bad" : ""),
    tile("Runs since", duration(Date.now() - status.started_ms), `node ${status.node_id}, version ${status.version}, Kafka at ${status.kafka}`),
    status.processes?.length ? tile("Processes", count(status.processes.length), `${status.processes.filter((each) => each.state === "ready").length} ready`) : null,
    now ? tile("Consumed records", rate(now.fetched_record_rate, ""), `by ${some(status.connection_count, "connection")}`) : null,
  ];
}

function lagsOf(page) {
  const rows = page.rows.filter((each) => each.lag);
  return [
    table("Groups with the greatest lag", [
      { name: "Group", cell: (row) => groupLink(row.group) },
      { name: "Lag", number: true, cell: (row) => some(row.lag, "record") },
      { name: "Why", cell: (row) => row.why },
    ], rows, { empty: page.total ? "No group lags." : "There are no groups yet." }),
    page.lagging > rows.length ? h("p", {}, h("a", { href: address(["groups"], { sort: "lag" }) }, `All ${count(page.lagging)} groups with a lag`)) : null,
  ];
}

function topicsOf(page) {
  return [
    table("Largest topics", [
      { name: "Topic", cell: (row) => topicLink(row.topic) },
      { name: "Size", number: true, cell: (row) => bytes(row.length_bytes) },
      { name: "Only in the store", number: true, cell: (row) => row.store_only_bytes ? h("a", { href: address(["topics", row.topic, "map"]) }, bytes(row.store_only_bytes)) : "–" },
      { name: "Stored now", number: true, cell: (row) => rate(row.record_rate, "records") },
      { name: "Find", cell: (row) => topicLinkTo(row.topic) },
    ], page.rows, { empty: "There are no topics yet. Any Kafka client makes one, or: firn topic create orders" }),
    page.total > page.rows.length ? h("p", {}, h("a", { href: "/topics" }, `All ${count(page.total)} topics`)) : null,
  ];
}

function topicLinkTo(topic) {
  return h("a", { href: address(["topics", topic, "records"]), "aria-label": `records of ${topic}` }, "records");
}

/** From the first page to a record: by its key, or by when it was stored. */
function findForm(go) {
  const names = h("datalist", { id: "topicnames" });
  const topic = h("input", {
    list: "topicnames", required: true, autocomplete: "off", spellcheck: "false",
    oninput: async () => {
      const page = await get("/v1/pages/topics", { filter: topic.value, max: 20 }).catch(() => ({ rows: [] }));
      replace(names, page.rows.map((each) => h("option", { value: each.topic })));
    },
    onfocus: () => names.children.length || topic.dispatchEvent(new Event("input")),
  });
  const by = select([["key", "newest record of a key"], ["minute", "what happened in a minute"]], "key", { onchange: () => fit() });
  const key = h("input", { autocomplete: "off", spellcheck: "false" });
  const minute = h("input", { type: "datetime-local", value: forInput(Date.now()).slice(0, 16) });
  const keyField = field("Key", key);
  const minuteField = field(`Minute (${zone()})`, minute);
  const fit = () => {
    keyField.hidden = by.value !== "key";
    minuteField.hidden = by.value === "key";
  };
  fit();
  return h("form", {
    class: "find",
    onsubmit: (event) => {
      event.preventDefault();
      const begin = new Date(minute.value).getTime();
      const wanted = by.value === "key" ? { key: key.value } : { since_ms: begin, until_ms: begin + 60_000 };
      go(address(["topics", topic.value, "records"], wanted));
    },
  }, field("Topic", topic), names, field("What", by), keyField, minuteField,
  h("button", { type: "submit", class: "primary" }, "Find"));
}
