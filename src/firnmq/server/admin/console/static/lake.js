// Topics as tables: how far each table is, its size and its snapshots.

import { get, may } from "./api.js";
import { address, h, replace } from "./dom.js";
import { ago, bytes, count, some, time } from "./format.js";
import { card, failure, heading, list, table, tile, topicLink } from "./widgets.js";

export async function view(context) {
  return context.parts[0] ? tableView(context) : lakeList(context);
}

function lakeList(context) {
  const where = h("p", { class: "quiet" });
  const made = list(context, {
    caption: "Topics with a table", path: "/v1/pages/lake",
    columns: [
      { name: "Topic", key: "topic", cell: (row) => topicLink(row.topic) },
      { name: "Table", cell: (row) => h("a", { href: address(["lake", row.topic]) }, row.table) },
      { name: "In the table", key: "table_rows", number: true, cell: (row) => some(row.table_rows, "record") },
      { name: "Lag", key: "lag", number: true, cell: (row) => row.lag ? some(row.lag, "record") : "none" },
      { name: "Ask", cell: (row) => may("administer") ? h("a", { href: address(["sql"], { query: `SELECT * FROM \`${row.topic}\` LIMIT 20` }), "aria-label": `query ${row.topic}` }, "SQL") : "" },
    ],
    sort: "topic", falling: ["lag", "table_rows"], filterName: "Filter by topic",
    empty: "No topic has a table yet. The command firn lake sync TOPIC makes one.",
    onPage: (page) => replace(where, "Catalog ", h("code", {}, page.catalog), ", files below ", h("code", {}, page.warehouse || "what the catalog says")),
  });
  return { title: "Lake", element: h("div", {}, heading("Lake"), where, made.element) };
}

async function tableView({ parts, signal }) {
  const topic = parts[0];
  const body = h("div", {}, h("p", { class: "quiet" }, "Asking the catalog; the first time takes some seconds…"));
  const load = async () => {
    try {
      show(body, topic, await get(`/v1/topics/${encodeURIComponent(topic)}/table`, {}, signal));
    } catch (error) {
      if (error.name !== "AbortError") replace(body, failure(error));
    }
  };
  load();
  return {
    title: `${topic}: table`,
    element: h("div", {},
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "/lake" }, "Lake"), " / "),
      heading(topic, h("a", { class: "button", href: address(["topics", topic, "map"]) }, "Where it is")), body),
  };
}

function show(box, topic, { table: found, snapshots }) {
  if (!found.exists) {
    replace(box, h("p", { class: "card" }, `The table ${found.table} is not there yet. The command firn lake sync ${topic} makes it.`));
    return;
  }
  replace(box,
    h("dl", { class: "tiles" },
      tile("Rows", count(found.rows), found.mode),
      tile("Size", bytes(found.file_bytes), some(found.files, "file")),
      tile("Lag", found.lag ? some(found.lag, "record") : "none", `${bytes(found.waiting_bytes)} of log`),
      tile("Last commit", ago(found.committed_ms), time(found.committed_ms)),
      tile("Snapshots", count(found.snapshots), `parts by ${found.partition}`),
      tile("Deletions that wait", count(found.waiting_deletions))),
    h("p", { class: "quiet" }, h("code", { class: "long" }, found.location ?? "")),
    card("Shards", table("Shards", [
      { name: "Shard", cell: (row) => String(row.shard) },
      { name: "Log begins", number: true, cell: (row) => count(row.log_start) },
      { name: "Table ends", number: true, cell: (row) => count(row.table_end) },
      { name: "Log ends", number: true, cell: (row) => count(row.log_end) },
      { name: "Lag", number: true, cell: (row) => count(row.lag) },
    ], found.shards)),
    card("Snapshots", table("Snapshots", [
      { name: "Snapshot", cell: (row) => h("code", {}, row.snapshot_id) },
      { name: "Committed", cell: (row) => h("span", { title: time(row.committed_ms) }, ago(row.committed_ms)) },
      { name: "What", cell: (row) => row.operation },
      { name: "Rows added", number: true, cell: (row) => count(row.added_rows) },
      { name: "Rows in all", number: true, cell: (row) => count(row.total_rows) },
    ], snapshots, { empty: "None." })));
}
