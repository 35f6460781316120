// A topic's shards, and what it is at a glance.

import { get } from "./api.js";
import { address, h } from "./dom.js";
import { bytes, count, shortTime, some } from "./format.js";
import { badge, card, groupLink, table, tile } from "./widgets.js";

export async function view({ topic, signal }) {
  const sum = (name) => topic.shards.reduce((all, each) => all + (each[name] ?? 0), 0);
  const records = sum("end_offset") - sum("start_offset");
  const found = await get("/v1/pages/topics", { filter: topic.topic, max: 200 }, signal);
  const row = found.rows.find((each) => each.topic === topic.topic);
  const keeps = topic.options["retention.ms"];
  return {
    element: h("div", {},
      h("dl", { class: "tiles" },
        tile("Records", count(records), some(topic.shard_count, "shard")),
        tile("Size", bytes(sum("length_bytes")), some(sum("segment_count"), "segment")),
        tile("Only in the store", bytes(sum("store_only_bytes")), topic.options.tiering === "on" ? h("a", { href: address(["tiering"], { topic: topic.topic }) }, "what it costs") : "tiering is off"),
        tile("Greatest lag", row?.lag ? some(row.lag, "record") : "none", row?.lag_group ? groupLink(row.lag_group) : null),
        tile("Kept", keeps === null ? "for ever" : some(Math.round(keeps / 86400000 * 10) / 10, "day"), topic.options["cleanup.policy"]),
        tile("Kept by", topic.storage_type, `made ${shortTime(topic.created_ms)}`)),
      card("Shards", table("Shards", [
        { name: "Shard", cell: (each) => h("a", { href: address(["topics", topic.topic, "records"], { shard: each.shard }) }, String(each.shard)) },
        { name: "First offset", number: true, cell: (each) => count(each.start_offset) },
        { name: "Next offset", number: true, cell: (each) => count(each.end_offset) },
        { name: "Records", number: true, cell: (each) => each.end_offset === null ? "–" : count(each.end_offset - each.start_offset) },
        { name: "Size", number: true, cell: (each) => bytes(each.length_bytes) },
        { name: "Segments", number: true, cell: (each) => each.segment_count === null ? "–" : h("a", { href: address(["topics", topic.topic, "segments"], { shard: each.shard }) }, count(each.segment_count)) },
        { name: "Only in the store", number: true, cell: (each) => bytes(each.store_only_bytes) },
        { name: "State", cell: (each) => each.failure ? h("span", {}, badge("failed", "bad"), " ", each.failure) : badge("works", "good") },
      ], topic.shards))),
  };
}
