// Consumer groups: who lags, where, why, and moving their offsets.

import { change, get, may } from "./api.js";
import { address, h, replace } from "./dom.js";
import { ago, count, rate, some, time } from "./format.js";
import { badge, card, dialog, failure, field, groupLink, heading, list, select, table, tile, topicLink } from "./widgets.js";

const STATES = { Stable: "good", Empty: "", Dead: "" };

export async function view(context) {
  return context.parts.length && context.parts[0] ? group(context) : groupList(context);
}

function groupList(context) {
  const made = list(context, {
    caption: "Groups", path: "/v1/pages/groups",
    columns: [
      { name: "Group", key: "group", cell: (row) => groupLink(row.group) },
      { name: "Lag", key: "lag", number: true, cell: (row) => row.lag ? some(row.lag, "record") : "0" },
      { name: "Change of the lag", number: true, cell: (row) => row.lag_rate === null ? "–" : rate(row.lag_rate, "records") },
      { name: "Why", cell: (row) => row.why ?? "" },
      { name: "State", key: "state", cell: (row) => badge(row.state, STATES[row.state] ?? "warn") },
      { name: "Members", key: "member_count", number: true, cell: (row) => count(row.member_count) },
      { name: "Topics", cell: (row) => row.topics.map((each, at) => [at ? ", " : "", topicLink(each)]) },
      { name: "Last commit", key: "committed_ms", cell: (row) => row.committed_ms === null ? "never" : ago(row.committed_ms) },
    ],
    sort: "group", falling: ["lag", "member_count", "committed_ms"],
    filterName: "Filter by name", empty: "There are no groups yet. A consumer with a group.id makes one.",
  });
  return { title: "Groups", element: h("div", {}, heading("Groups"), made.element) };
}

async function group(context) {
  const name = context.parts[0];
  const path = `/v1/groups/${encodeURIComponent(name)}`;
  const [page, first] = await Promise.all([
    get("/v1/pages/groups", { name }, context.signal),
    get("/v1/pages/group-shards", { group: name, max: 1 }, context.signal),
  ]);
  const row = page.rows[0];
  const mayChange = may("operate");
  const shards = list(context, {
    caption: "Shards", path: "/v1/pages/group-shards", more: { group: name },
    columns: [
      { name: "Topic", key: "topic", cell: (each) => topicLink(each.topic) },
      { name: "Shard", number: true, cell: (each) => each.shard },
      { name: "Lag", key: "lag", number: true, cell: (each) => each.lag === null ? "–" : count(each.lag) },
      { name: "Why", cell: (each) => each.why ?? "" },
      { name: "Committed offset", number: true, cell: (each) => each.committed_offset === null ? "none" : h("a", { href: address(["topics", each.topic, "records"], { from: "offset", shard: each.shard, offset: Math.min(Math.max(each.committed_offset, each.start_offset), each.end_offset) }) }, count(each.committed_offset)) },
      { name: "Next offset", number: true, cell: (each) => count(each.end_offset) },
      { name: "Committed", key: "committed_ms", cell: (each) => each.committed_ms === null ? "never" : h("span", { title: time(each.committed_ms) }, ago(each.committed_ms)) },
      { name: "Member", cell: (each) => each.client ?? each.member_id ?? "none" },
    ],
    sort: "lag", falling: ["lag", "committed_ms"], filterName: "Filter by topic",
    empty: "It has committed nothing, and no shard is assigned to its members.",
  });
  const members = h("div", {}, h("p", { class: "quiet" }, row?.member_count ? "Loading…" : "No consumer is connected."));
  if (row?.member_count) loadMembers(path, members, context.signal);
  return {
    title: name,
    element: h("div", {},
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: "/groups" }, "Groups"), " / "),
      heading(name,
        mayChange ? h("button", { type: "button", onclick: () => reset(context, name, first.topics, row?.member_count) }, "Move offsets") : null,
        mayChange ? h("button", { type: "button", class: "danger", onclick: () => remove(context, name, path) }, "Delete group") : null),
      h("dl", { class: "tiles" },
        tile("Lag", some(first.lag, "record"), first.lag ? row?.why ?? null : "it has read everything"),
        tile("State", row?.state ?? "–", row?.lag_rate ? `the lag changes by ${rate(row.lag_rate, "records")}` : null),
        tile("Members", count(row?.member_count ?? 0)),
        tile("Topics", count(first.topics.length), some(first.total, "shard")),
        tile("Last commit", row?.committed_ms ? ago(row.committed_ms) : "never", row?.committed_ms ? time(row.committed_ms) : null)),
      shards.element,
      card("Members", members)),
  };
}

async function loadMembers(path, box, signal) {
  try {
    const found = await get(path, {}, signal);
    replace(box, table("Members", [
      { name: "Client", cell: (each) => each.client_id },
      { name: "Address", cell: (each) => each.client_host },
      { name: "Member", cell: (each) => h("code", { class: "long" }, each.member_id) },
      { name: "Instance", cell: (each) => each.instance_id ?? "–" },
      { name: "Shards", number: true, cell: (each) => count(found.offsets.filter((one) => one.member_id === each.member_id).length) },
    ], found.members, { empty: "No consumer is connected." }));
  } catch (error) {
    if (error.name !== "AbortError") replace(box, failure(error));
  }
}

const PLACES = [
  ["earliest", "the first record"], ["latest", "the end: pass over what was not read"], ["time", "a time"],
  ["offset", "an offset"], ["shift", "so many records on or back"],
];

function reset({ again }, name, topics, memberCount) {
  const topic = topics.length ? select(topics.map((each) => [each, each]), topics[0]) : h("input", { required: true });
  const to = select(PLACES, "earliest", { onchange: () => fit() });
  const value = h("input", { type: "number", value: "0" });
  const at = h("input", { type: "datetime-local", step: 1 });
  const shards = h("input", { placeholder: "all", pattern: "[0-9, ]*", autocomplete: "off" });
  const valueField = field("Offset or number", value);
  const timeField = field("Time (local)", at);
  const preview = h("div", { role: "status" });
  const fit = () => {
    valueField.hidden = !["offset", "shift"].includes(to.value);
    timeField.hidden = to.value !== "time";
    replace(preview);
  };
  fit();
  const wanted = (dryRun) => {
    const chosen = shards.value.split(/[ ,]+/).filter(Boolean).map(Number);
    const body = { topic: topic.value, to: to.value, dry_run: dryRun };
    if (chosen.length) body.shards = chosen;
    if (["offset", "shift"].includes(to.value)) body.value = Number(value.value);
    if (to.value === "time") body.value = new Date(at.value).getTime();
    return body;
  };
  const path = `/v1/groups/${encodeURIComponent(name)}/offsets`;
  const look = h("button", {
    type: "button", onclick: async () => {
      try {
        const moves = await change("POST", path, wanted(true));
        replace(preview, table("What would move", [
          { name: "Shard", cell: (row) => row.shard },
          { name: "From", number: true, cell: (row) => row.before === null ? "none" : count(row.before) },
          { name: "To", number: true, cell: (row) => count(row.after) },
          { name: "Records to read then", number: true, cell: (row) => count(row.end_offset - row.after) },
        ], moves));
      } catch (error) {
        replace(preview, failure(error));
      }
    },
  }, "Dry run: show what would move");
  dialog(`Move the offsets of ${name}`, [
    memberCount ? h("p", { class: "failure" }, "The group is in use. Stop its consumers first: their commits would undo the change.") : null,
    field("Topic", topic), field("To", to), valueField, timeField, field("Shards", shards, "Numbers with commas; all if empty."),
    h("div", {}, look), preview,
  ], "Move offsets", async () => {
    await change("POST", path, wanted(false));
    again();
  }, { danger: true });
}

function remove({ go }, name, path) {
  dialog(`Delete ${name}?`, [h("p", {}, "Its committed offsets go. Consumers that come back begin where their settings say.")], "Delete", async () => {
    await change("DELETE", path);
    go("/groups");
  }, { danger: true });
}
