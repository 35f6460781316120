// The list of topics; one topic with its shards, its map, its records and its options.

import { change, get, may } from "./api.js";
import { address, h } from "./dom.js";
import { bytes, count, rate, shortTime, some } from "./format.js";
import { badge, dialog, field, groupLink, heading, list, tabs, topicLink } from "./widgets.js";

export async function view(context) {
  const { parts, query, signal } = context;
  if (!parts.length || parts[0] === "") return topicList(context);
  const [name, tab = ""] = parts;
  const modules = { "": "./shards.js", map: "./map.js", records: "./records.js", segments: "./map.js", options: "./options.js" };
  if (!(tab in modules)) throw new Error("The console has no such page.");
  // The node's error names a topic that is not there.
  const [{ options }, page] = await Promise.all([
    get(`/v1/topics/${encodeURIComponent(name)}/config`, {}, signal),
    get("/v1/pages/topics", { name }, signal),
  ]);
  const topic = { ...page.rows[0], topic: name, options };
  const module = await import(modules[tab]);
  const made = await module[tab === "segments" ? "segments" : "view"]({ ...context, topic });
  const to = (each) => address(each ? ["topics", name, each] : ["topics", name]);
  return {
    title: `${name}${tab ? `: ${tab}` : ""}`,
    element: h("div", {},
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "/topics" }, "Topics"), " / "),
      heading(name, may("operate") ? h("button", { type: "button", class: "danger", onclick: () => remove(context, topic) }, "Delete topic") : null),
      tabs("Parts of the topic", [
        ["", "Shards", to("")], ["map", "Where it is", to("map")], ["records", "Records", to("records")],
        ["segments", "Segments", to("segments")], ["options", "Options", to("options")],
      ], tab),
      made.element),
    query,
  };
}

function topicList(context) {
  const columns = [
    { name: "Topic", key: "topic", cell: (row) => topicLink(row.topic) },
    { name: "Shards", number: true, cell: (row) => count(row.shard_count) },
    { name: "Records", key: "record_count", number: true, cell: (row) => row.failure ? badge("cannot be opened", "bad") : count(row.record_count) },
    { name: "Size", key: "length_bytes", number: true, cell: (row) => bytes(row.length_bytes) },
    { name: "Only in the store", number: true, cell: (row) => row.store_only_bytes ? h("a", { href: address(["topics", row.topic, "segments"], { place: "store" }) }, bytes(row.store_only_bytes)) : "–" },
    { name: "Stored now", key: "record_rate", number: true, cell: (row) => rate(row.record_rate, "records") },
    { name: "Greatest lag", key: "lag", number: true, cell: (row) => row.lag ? h("span", {}, some(row.lag, "record"), " ", groupLink(row.lag_group)) : "–" },
    { name: "Made", key: "created_ms", cell: (row) => shortTime(row.created_ms) },
  ];
  const made = list(context, {
    caption: "Topics", path: "/v1/pages/topics", columns, sort: "topic",
    falling: ["length_bytes", "record_count", "record_rate", "lag", "created_ms"],
    filterName: "Filter by name", empty: "There are no topics yet. Any Kafka client makes one.",
  });
  return {
    title: "Topics",
    element: h("div", {}, heading("Topics", may("operate") ? h("button", { type: "button", class: "primary", onclick: () => create(context) }, "New topic") : null), made.element),
  };
}

function create({ go }) {
  const name = h("input", { required: true, maxlength: 249, autocomplete: "off" });
  const shards = h("input", { type: "number", min: 1, value: "1", required: true });
  dialog("New topic", [field("Name", name, "Letters, digits, dot, underscore and hyphen."), field("Shards", shards)], "Create", async () => {
    const made = await change("POST", "/v1/topics", { topic: name.value, shard_count: Number(shards.value) });
    go(address(["topics", made.topic]));
  });
}

function remove({ go }, topic) {
  const typed = h("input", { autocomplete: "off" });
  dialog(`Delete ${topic.topic}?`, [
    h("p", {}, "All its records go, here and in the object store. This cannot be undone."),
    field("Type the topic's name", typed),
  ], "Delete", async () => {
    if (typed.value !== topic.topic) throw new Error("That is not the topic's name.");
    await change("DELETE", `/v1/topics/${encodeURIComponent(topic.topic)}`);
    go("/topics");
  }, { danger: true });
}
