// Where a topic's records are: shard → segments → tier.

import { get, session } from "./api.js";
import { address, h } from "./dom.js";
import { bytes, count, shortTime, some } from "./format.js";
import { pager } from "./shards.js";
import { badge, list, select } from "./widgets.js";

export const PLACES = {
  active: ["active", "being written, on this node"],
  sealed: ["sealed", "on this node, not in the store"],
  both: ["both", "on this node and in the store"],
  store: ["store", "only in the object store"],
  mixed: ["mixed", "of several kinds"],
};
const PAGE = 50;

export async function view({ topic, query, signal, go }) {
  const start = Number(query.get("start") ?? 0) || 0;
  const found = await get(`/v1/topics/${encodeURIComponent(topic.topic)}/places`, { start, max: PAGE }, signal);
  const hasTable = found.shards.some((each) => each.table_end !== null);
  const legend = Object.entries(PLACES).filter(([key]) => key !== "mixed")
    .map(([key, [name, text]]) => h("li", {}, h("span", { class: `swatch ${key}`, "aria-hidden": "true" }), h("b", {}, name), ` ${text}`));
  if (hasTable) legend.push(h("li", {}, h("span", { class: "swatch table", "aria-hidden": "true" }), h("b", {}, "in the table"), " Iceberg has it too"));
  const last = start + found.shards.length;
  const to = (at) => address(["topics", topic.topic, "map"], { start: at || undefined });
  return {
    element: h("div", {},
      h("p", { class: "quiet" }, "Each bar is a shard from its first offset to its next one, left to right. A part leads to its segments."),
      h("ul", { class: "maplegend" }, ...legend),
      h("ol", { class: "shardmap", start }, ...found.shards.map((each) => shardOf(topic.topic, each))),
      found.shard_count > PAGE ? pager(start, last, found.shard_count, (at) => go(to(at))) : null),
  };
}

function shardOf(topic, shard) {
  if (shard.failure && !shard.runs.length) return h("li", {}, h("div", { class: "shardname" }, h("b", {}, `Shard ${shard.shard}`), " ", badge("failed", "bad"), " ", shard.failure), nodesOf(shard));
  const total = Math.max(shard.end_offset - shard.start_offset, 1);
  const bar = h("div", { class: "runs" });
  for (const run of shard.runs) {
    const [name, text] = PLACES[run.place];
    const share = Math.max(run.end_offset - Math.max(run.base_offset, shard.start_offset), 0) / total;
    const seen = share > 0.12 ? `${name} · ${bytes(run.length_bytes)}` : share > 0.05 ? name : "";
    const part = h("a", {
      class: `run ${run.place}`,
      href: address(["topics", topic, "segments"], { shard: shard.shard, place: run.place === "mixed" ? "" : run.place }),
      title: `${name}: ${text}\n${some(run.segment_count, "segment")}, ${bytes(run.length_bytes)}\noffsets ${count(run.base_offset)} to ${count(run.end_offset)}`,
      "aria-label": `${seen || name}, ${text}: ${some(run.segment_count, "segment")}, ${bytes(run.length_bytes)}, offsets ${count(run.base_offset)} to ${count(run.end_offset)}`,
    }, h("span", { "aria-hidden": "true" }, seen));
    part.style.flexGrow = String(Math.max(share, 0.004));
    bar.append(part);
  }
  const inTable = h("div", { class: "intable" });
  if (shard.table_end !== null) {
    const share = Math.min(Math.max(shard.table_end - shard.start_offset, 0) / total, 1);
    const fill = h("div", { class: "fill", title: `in the table up to offset ${count(shard.table_end)}` });
    fill.style.width = `${share * 100}%`;
    inTable.append(fill);
  }
  return h("li", {},
    h("div", { class: "shardname" }, h("b", {}, `Shard ${shard.shard}`), " ",
      h("span", { class: "quiet" }, `offsets ${count(shard.start_offset)} to ${count(shard.end_offset)} · ${bytes(shard.length_bytes)}`,
        shard.table_end === null ? "" : ` · in the table up to ${count(shard.table_end)}`),
      shard.failure ? [" ", badge("failed", "bad"), " ", shard.failure] : null),
    shard.runs.length ? bar : h("p", { class: "quiet" }, "Its segments are not known here."),
    shard.table_end === null ? null : inTable,
    nodesOf(shard));
}

function nodesOf(shard) {
  if (!session.cluster || shard.leader === null) return null;
  const behind = shard.replicas.filter((each) => !shard.in_sync.includes(each));
  return h("p", { class: "nodes" }, `leader: node ${shard.leader} · replicas: ${shard.replicas.join(", ") || "none"} · in sync: ${shard.in_sync.join(", ") || "none"} `,
    behind.length ? badge(`node ${behind.join(", ")} is behind`, "warn") : null);
}

/** The list of segments. */
export async function segments(context) {
  const { topic, query, go } = context;
  const shard = query.get("shard");
  const place = query.get("place");
  const to = (changes) => go(address(["topics", topic.topic, "segments"], { shard, place, ...changes }));
  const made = list(context, {
    caption: "Segments", path: `/v1/topics/${encodeURIComponent(topic.topic)}/segment-page`,
    columns: [
      { name: "Shard", key: "shard", cell: (row) => `${row.shard} / ${row.segment_seq}` },
      { name: "Where", cell: (row) => badge(...placeOf(row)) },
      { name: "First offset", number: true, cell: (row) => h("a", { href: address(["topics", topic.topic, "records"], { from: "offset", shard: row.shard, offset: row.base_offset }) }, count(row.base_offset)) },
      { name: "Next offset", number: true, cell: (row) => count(row.end_offset) },
      { name: "Size", key: "length_bytes", number: true, cell: (row) => bytes(row.length_bytes) },
      { name: "Medium", cell: (row) => row.medium },
      { name: "Begun", key: "created_ms", cell: (row) => shortTime(row.created_ms) },
      { name: "Sealed", cell: (row) => shortTime(row.sealed_ms) },
      { name: "CRC32C", cell: (row) => row.crc ? h("code", {}, row.crc) : "–" },
      { name: "Object", cell: (row) => row.object_key ? h("code", { class: "long" }, row.object_key) : "–" },
    ],
    sort: "shard", falling: ["length_bytes", "created_ms"], more: { shard: shard ?? "", place: place ?? "" },
    empty: place ? "No segment is there." : "No segments.",
  });
  return {
    element: h("div", {},
      h("div", { class: "listbar" },
        labelled("Where", select([["", "anywhere"], ...Object.entries(PLACES).filter(([key]) => key !== "mixed").map(([key, [name, text]]) => [key, `${name}: ${text}`])], place ?? "", { onchange: (event) => to({ place: event.target.value }) })),
        labelled("Shard", h("input", { type: "number", min: 0, max: topic.shard_count - 1, placeholder: "all", value: shard ?? "", onchange: (event) => to({ shard: event.target.value }) }))),
      made.element),
  };
}

export function labelled(name, input) {
  return h("label", { class: "inline" }, `${name} `, input);
}

function placeOf(row) {
  if (row.state === "active") return ["active", "active"];
  if (!row.is_local) return ["store", "store"];
  return row.state === "tiered" ? ["both", "both"] : ["sealed", "sealed"];
}

