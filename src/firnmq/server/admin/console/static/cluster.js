// The nodes of a cluster, and which of them have which shards.

import { get } from "./api.js";
import { address, h } from "./dom.js";
import { bytes, count, duration, some } from "./format.js";
import { badge, card, heading, list, select, table, tile, topicLink } from "./widgets.js";

const STATES = { here: ["here", "good"], registered: ["there", "good"], away: ["away", "bad"] };

export async function view(context) {
  const { query, signal, go } = context;
  const found = await get("/v1/cluster", {}, signal);
  const away = found.nodes.filter((each) => each.state === "away");
  const summary = h("div");
  const state = query.get("state") ?? "all";
  const node = query.get("node") ?? "";
  const to = (changes) => go(address(["cluster"], { state: state === "all" ? "" : state, node, ...changes }));
  const shards = list(context, {
    caption: "Shards", path: "/v1/pages/leaders", more: { state, node },
    columns: [
      { name: "Topic", key: "topic", cell: (row) => topicLink(row.topic, ["map"]) },
      { name: "Shard", number: true, cell: (row) => row.shard },
      { name: "Leader", key: "leader", cell: (row) => `node ${row.leader}` },
      { name: "Replicas", cell: (row) => row.replicas.join(", ") },
      { name: "In sync", cell: (row) => row.in_sync.join(", ") || "none" },
      { name: "State", cell: (row) => row.why ? [badge(row.why.includes("leader") ? "away" : "under-replicated", "bad"), " ", row.why] : badge("as it is to be", "good") },
    ],
    sort: "topic", filterName: "Filter by topic", empty: state === "all" ? "No shards yet." : "None: every shard is as it is to be.",
    onPage(page) {
      summary.replaceChildren(h("dl", { class: "tiles" },
        tile("Nodes", count(found.nodes.length), away.length ? `${away.length} away` : "all there", away.length ? "bad" : ""),
        tile("Shards", count(found.shard_count)),
        tile("Without a leader", h("a", { href: address(["cluster"], { state: "away" }) }, count(page.away)), "their node is away", page.away ? "bad" : ""),
        tile("Under-replicated", h("a", { href: address(["cluster"], { state: "behind" }) }, count(page.behind)), "fewer in sync than replicas", page.behind ? "bad" : ""),
        tile("Metadata", found.meta, `revision ${count(found.revision)}`)));
    },
  });
  return {
    title: "Cluster",
    element: h("div", {}, heading("Cluster"), summary,
      card("Nodes", table("Nodes", [
        { name: "Node", cell: (row) => h("a", { href: address(["cluster"], { node: row.node }) }, `node ${row.node}`) },
        { name: "State", cell: (row) => badge(...(STATES[row.state] ?? [row.state])) },
        { name: "Leads", number: true, cell: (row) => some(row.leaders, "shard") },
        { name: "Holds", number: true, cell: (row) => bytes(row.stored_bytes) },
        { name: "Groups' slots", number: true, cell: (row) => count(row.coordinator_slots) },
        { name: "Here since", cell: (row) => row.registered_ms ? duration(Date.now() - row.registered_ms) : "–" },
        { name: "Starts", number: true, cell: (row) => count(row.incarnation) },
        { name: "Kafka", cell: (row) => row.kafka || "–" },
        { name: "HTTP", cell: (row) => row.http || "–" },
      ], found.nodes)),
      h("h2", { class: "part" }, "Shards"),
      h("div", { class: "listbar" },
        h("label", { class: "inline" }, "Show ", select([["all", "all"], ["away", "without a leader"], ["behind", "under-replicated"]], state, { onchange: (event) => to({ state: event.target.value === "all" ? "" : event.target.value }) })),
        h("label", { class: "inline" }, "On ", select([["", "any node"], ...found.nodes.map((each) => [String(each.node), `node ${each.node}`])], node, { onchange: (event) => to({ node: event.target.value }) }))),
      shards.element),
  };
}
