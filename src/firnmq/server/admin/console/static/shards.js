// A topic's shards, and what it is at a glance.

import { get } from "./api.js";
import { address, h } from "./dom.js";
import { bytes, count, shortTime, some } from "./format.js";
import { badge, card, groupLink, table, tile } from "./widgets.js";

const PAGE = 50;

export async function view({ topic, query, signal, go }) {
  const start = Number(query.get("start") ?? 0) || 0;
  const found = await get(`/v1/topics/${encodeURIComponent(topic.topic)}/places`, { start, max: PAGE }, signal);
  const keeps = topic.options["retention.ms"];
  const last = start + found.shards.length;
  const to = (at) => go(address(["topics", topic.topic], { start: at || undefined }));
  return {
    element: h("div", {},
      h("dl", { class: "tiles" },
        tile("Records", count(topic.record_count), some(topic.shard_count, "shard")),
        tile("Size", bytes(topic.length_bytes), topic.record_rate ? `${count(topic.record_rate)} records/s stored now` : null),
        tile("Only in the store", bytes(topic.store_only_bytes), h("a", { href: address(["tiering"], { topic: topic.topic }) }, topic.options.tiering === "on" ? "what it costs" : "tiering is off: what it would cost")),
        tile("Greatest lag", topic.lag ? some(topic.lag, "record") : "none", topic.lag_group ? groupLink(topic.lag_group) : null),
        tile("Kept", keeps === null ? "for ever" : some(Math.round(keeps / 8640000) / 10, "day"), topic.options["cleanup.policy"]),
        tile("Kept by", topic.storage_type, `made ${shortTime(topic.created_ms)}`)),
      card("Shards", table("Shards", [
        { name: "Shard", cell: (each) => h("a", { href: address(["topics", topic.topic, "records"], { shard: each.shard }), "aria-label": `records of shard ${each.shard}` }, String(each.shard)) },
        { name: "First offset", number: true, cell: (each) => count(each.start_offset) },
        { name: "Next offset", number: true, cell: (each) => count(each.end_offset) },
        { name: "Records", number: true, cell: (each) => each.end_offset === null ? "–" : count(each.end_offset - each.start_offset) },
        { name: "Size", number: true, cell: (each) => bytes(each.length_bytes) },
        { name: "Segments", number: true, cell: (each) => each.segment_count === null ? "–" : h("a", { href: address(["topics", topic.topic, "segments"], { shard: each.shard }) }, count(each.segment_count)) },
        { name: "Only in the store", number: true, cell: (each) => bytes(each.store_only_bytes) },
        { name: "State", cell: (each) => each.failure ? h("span", {}, badge("failed", "bad"), " ", each.failure) : badge("works", "good") },
      ], found.shards)),
      found.shard_count > PAGE ? pager(start, last, found.shard_count, to) : null),
  };
}

/** Turns the pages of a topic's shards. */
export function pager(start, last, total, to) {
  return h("div", { class: "listbar below" }, h("span", { class: "grow" }),
    h("span", { class: "quiet" }, `${count(start)}–${count(last - 1)} of ${some(total, "shard")}`),
    h("button", { type: "button", class: "page-previous", disabled: start === 0, onclick: () => to(Math.max(start - PAGE, 0)) }, "Previous"),
    h("button", { type: "button", class: "page-next", disabled: last >= total, onclick: () => to(start + PAGE) }, "Next"));
}
