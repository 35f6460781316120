// The message browser: by place, time, key or tag, and live.

import { follow, get, whileVisible } from "./api.js";
import { address, h, replace, say } from "./dom.js";
import { bytes, count, forInput, hexDump, prettyJson, some, time, zone } from "./format.js";
import { failure, field, select } from "./widgets.js";

const MODES = [
  ["newest", "newest first"], ["oldest", "oldest first"], ["offset", "from an offset"], ["time", "at a time"],
  ["key", "newest of a key"], ["versions", "all of a key"], ["tag", "with a tag"],
];
const TAIL_MAX = 500;
const PREVIEW_CHARS = 300;

function modeOf(query) {
  if (query.get("live")) return "newest";
  if (query.has("key") || query.has("key_base64")) return query.get("all") ? "versions" : "key";
  if (query.has("tag")) return "tag";
  if (query.has("since_ms")) return "time";
  if (query.has("offset")) return "offset";
  return query.get("from") === "oldest" ? "oldest" : "newest";
}

export async function view({ topic, query, signal, go }) {
  const isLive = Boolean(query.get("live"));
  const base = `/v1/topics/${encodeURIComponent(topic.topic)}`;
  const results = h("div", { class: "records" });
  const to = (parameters) => address(["topics", topic.topic, "records"], parameters);
  const element = h("div", {}, formOf(topic, query, isLive, (parameters) => go(to(parameters))), results);
  const show = (record) => rowOf(topic, record, to, signal);

  if (isLive) live(base, query, results, show, signal);
  else await page(base, query, results, show, to, signal);
  return { element };
}

function formOf(topic, query, isLive, send) {
  const mode = select(MODES, modeOf(query), { onchange: () => fit() });
  const shard = h("input", { type: "number", min: 0, max: topic.shard_count - 1, placeholder: "all", value: query.get("shard") ?? "" });
  const offset = h("input", { type: "number", min: 0, value: query.get("offset") ?? "0" });
  const since = Number(query.get("since_ms") ?? 0) || Date.now() - 3600_000;
  const at = h("input", { type: "datetime-local", step: 1, value: forInput(since) });
  const length = query.has("since_ms") && query.has("until_ms") ? Number(query.get("until_ms")) - since : 60_000;
  const span = select([["", "and everything after"], ["1000", "1 second"], ["60000", "1 minute"], ["3600000", "1 hour"], ["86400000", "1 day"]],
    query.has("since_ms") && !query.has("until_ms") ? "" : String([1000, 60000, 3600000, 86400000].includes(length) ? length : 60000));
  const key = h("input", { value: query.get("key") ?? "", autocomplete: "off", spellcheck: "false" });
  const tag = h("input", { value: query.get("tag") ?? "", autocomplete: "off", spellcheck: "false" });
  const contains = h("input", { value: query.get("contains") ?? "", placeholder: "any", autocomplete: "off" });
  const parts = {
    offset: field("Offset", offset), at: field(`Time (${zone()})`, at), span: field("How long", span),
    key: field("Key", key), tag: field("Tag", tag), contains: field("With the text", contains),
  };
  const uses = { newest: [], oldest: [], offset: ["offset"], time: ["at", "span"], key: ["key"], versions: ["key"], tag: ["tag"] };

  function fit() {
    const used = isLive ? ["contains"] : uses[mode.value];
    for (const [name, part] of Object.entries(parts)) part.hidden = !used.includes(name);
  }

  function wanted() {
    const found = { shard: shard.value };
    switch (mode.value) {
      case "oldest": return { ...found, from: "oldest" };
      case "offset": return { ...found, from: "offset", offset: offset.value, shard: shard.value || (topic.shard_count > 1 ? "0" : "") };
      case "time": {
        const begin = new Date(at.value).getTime();
        return { ...found, since_ms: begin, until_ms: span.value ? begin + Number(span.value) : "" };
      }
      case "key": return { ...found, key: key.value };
      case "versions": return { ...found, key: key.value, all: "true" };
      case "tag": return { ...found, tag: tag.value };
      default: return found;
    }
  }

  fit();
  return h("form", {
    class: "search", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      send(isLive ? { live: "1", shard: shard.value, contains: contains.value } : wanted());
    },
  },
  isLive ? null : field("Show", mode), ...Object.values(parts), topic.shard_count > 1 ? field("Shard", shard) : null,
  h("div", { class: "buttons" },
    h("button", { type: "submit", class: "primary" }, isLive ? "Apply" : "Show"),
    h("button", { type: "button", "aria-pressed": String(isLive), onclick: () => send(isLive ? { shard: shard.value } : { live: "1", shard: shard.value }) },
      isLive ? "Stop following" : "Follow live")));
}

async function page(base, query, results, show, to, signal) {
  const parameters = Object.fromEntries(["from", "shard", "offset", "since_ms", "until_ms", "key", "key_base64", "all", "tag", "cursor"]
    .map((name) => [name, query.get(name)]));
  let found;
  try {
    found = await get(`${base}/browse`, parameters, signal);
  } catch (error) {
    if (error.name !== "AbortError") replace(results, failure(error));
    return;
  }
  const rest = { ...parameters, cursor: found.next };
  replace(results,
    found.note ? h("p", { class: "quiet" }, found.note) : null,
    found.records.length ? tableOf(found.records.map(show)) : h("p", { class: "quiet" }, found.next ? "Nothing that fits in the part that was looked at." : "No records here."),
    h("div", { class: "listbar" }, h("span", { class: "grow" }), h("span", { class: "quiet" }, some(found.records.length, "record")),
      parameters.cursor ? h("button", { type: "button", class: "page-previous", onclick: () => history.back() }, "Back") : null,
      found.next ? h("a", { class: "button page-next", href: to(rest) }, "More") : null));
}

function tableOf(rows) {
  const body = h("tbody", {}, ...rows);
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Records" },
    h("table", { class: "recordtable" }, h("caption", { class: "vh" }, "Records"),
      h("thead", {}, h("tr", {}, ...["Place", "Time", "Key", "Value", "Tags"].map((each) => h("th", { scope: "col" }, each)))), body));
}

function rowOf(topic, record, to, signal) {
  const id = `r${record.shard}-${record.offset}-${++rows}`;
  let details = null;
  const button = h("button", {
    type: "button", class: "open", "aria-expanded": "false",
    "aria-label": `${record.shard}:${record.offset}, show all of the record`,
    onclick: () => {
      if (details) {
        details.remove();
        details = null;
      } else {
        details = h("tr", { class: "details", id }, h("td", { colspan: 5 }, detailsOf(topic, record, to, signal)));
        row.after(details);
      }
      button.setAttribute("aria-expanded", String(details !== null));
    },
  }, `${record.shard}:${record.offset}`);
  const row = h("tr", {},
    h("th", { scope: "row" }, button),
    h("td", { class: "when" }, time(record.timestamp_ms)),
    h("td", { class: "text" }, keyOf(record)),
    h("td", { class: "text value" }, previewOf(record)),
    h("td", {}, (record.tags ?? []).map((each) => [h("a", { class: "tag", href: to({ tag: each }) }, each), " "])));
  return row;
}

let rows = 0;

function keyOf(record) {
  if (record.key !== null && record.key !== undefined) return record.key === "" ? h("i", {}, "empty") : record.key;
  return record.key_base64 ? h("i", {}, `${some(atob(record.key_base64).length, "byte")}`) : h("i", {}, "none");
}

function previewOf(record) {
  if (record.value !== null && record.value !== undefined) {
    const text = record.value.slice(0, PREVIEW_CHARS).replace(/\s+/g, " ");
    return text === "" ? h("i", {}, record.value_length ? "white space" : "empty") : text + (record.value.length > PREVIEW_CHARS || record.is_shortened ? "…" : "");
  }
  if (record.value_base64) return h("i", {}, `${bytes(record.value_length)}, not text`);
  return h("i", {}, "no value: the key is deleted");
}

function detailsOf(topic, record, to, signal) {
  const value = h("div");
  showValue(value, record);
  const whole = record.is_shortened ? h("button", {
    type: "button", onclick: async () => {
      try {
        const found = await get(`/v1/topics/${encodeURIComponent(topic.topic)}/browse`, {
          from: "offset", shard: record.shard, offset: record.offset, max: 1, value_bytes_max: 4194304,
        }, signal);
        showValue(value, found.records[0] ?? record);
        whole.remove();
      } catch (error) {
        replace(value, failure(error));
      }
    },
  }, `Show the whole value (${bytes(record.value_length)}, at most 4 MB)`) : null;
  const byKey = record.key !== null && record.key !== undefined ? { key: record.key } : record.key_base64 ? { key_base64: record.key_base64 } : null;
  return h("div", { class: "record" },
    h("dl", {},
      h("dt", {}, "Place"), h("dd", {}, `shard ${record.shard}, offset ${count(record.offset)}`),
      h("dt", {}, "Time"), h("dd", {}, `${time(record.timestamp_ms)} (${record.timestamp_ms} ms)`),
      h("dt", {}, "Key"), h("dd", { class: "text" }, record.key_base64 ? h("pre", {}, hexDump(record.key_base64)) : keyOf(record)),
      h("dt", {}, "Size of the value"), h("dd", {}, record.value_length === null ? "–" : `${bytes(record.value_length)} (${some(record.value_length, "byte")})`),
      record.expire_at_ms ? [h("dt", {}, "Expires"), h("dd", {}, time(record.expire_at_ms))] : null,
      h("dt", {}, "Headers"), h("dd", {}, headersOf(record.headers ?? []))),
    h("p", { class: "actions" },
      h("a", { href: to({ from: "offset", shard: record.shard, offset: record.offset }) }, "Records from here"),
      byKey ? [" · ", h("a", { href: to({ ...byKey, all: "true" }) }, "All of this key"), " · ", h("a", { href: to(byKey) }, "Newest of this key")] : null,
      " · ", h("a", { href: to({ since_ms: record.timestamp_ms - record.timestamp_ms % 60000, until_ms: record.timestamp_ms - record.timestamp_ms % 60000 + 60000 }) }, "The same minute")),
    h("p", { class: "label" }, "Value"), value, whole);
}

function headersOf(headers) {
  if (!headers.length) return "none";
  return h("table", { class: "small" }, h("caption", { class: "vh" }, "Headers"),
    h("tbody", {}, ...headers.map((each) => h("tr", {}, h("th", { scope: "row", class: "text" }, each.name),
      h("td", { class: "text" }, each.value_base64 ? h("pre", {}, hexDump(each.value_base64)) : each.value ?? h("i", {}, "none"))))));
}

function showValue(box, record) {
  if (record.value_base64) {
    replace(box, h("pre", { class: "value", tabindex: 0, role: "region", "aria-label": "Value" }, hexDump(record.value_base64)));
    return;
  }
  if (record.value === null || record.value === undefined) {
    replace(box, h("p", { class: "quiet" }, "No value: compaction deletes the key."));
    return;
  }
  const pretty = record.is_shortened ? null : prettyJson(record.value);
  const text = h("pre", { class: "value", tabindex: 0, role: "region", "aria-label": "Value" }, pretty ?? record.value);
  if (pretty === null) {
    replace(box, text);
    return;
  }
  let isPretty = true;
  replace(box, h("button", {
    type: "button", class: "plain", onclick: (event) => {
      isPretty = !isPretty;
      replace(text, isPretty ? pretty : record.value);
      replace(event.target, isPretty ? "Show as stored" : "Show as JSON");
    },
  }, "Show as stored"), text);
}

function live(base, query, results, show, signal) {
  const state = h("span", { class: "livestate", role: "status" }, "connecting…");
  const numbers = h("span", { class: "quiet" });
  let isPaused = false;
  let waiting = [];
  let seen = 0;
  let skipped = 0;
  const shownRows = tableOf([]);
  const body = shownRows.querySelector("tbody");
  const pause = h("button", {
    type: "button", "aria-pressed": "false", onclick: () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      replace(pause, isPaused ? "Go on" : "Pause");
      if (!isPaused) put([]);
    },
  }, "Pause");
  const clear = h("button", { type: "button", onclick: () => replace(body) }, "Clear");
  replace(results, h("div", { class: "listbar" }, state, numbers, h("span", { class: "grow" }), pause, clear), shownRows);

  function put(records) {
    waiting = [...waiting, ...records].slice(-TAIL_MAX);
    if (!isPaused) {
      const made = waiting.map(show).reverse();
      waiting = [];
      body.prepend(...made);
      while (body.children.length > TAIL_MAX) body.lastElementChild.remove();
    }
    replace(numbers, `${some(seen, "record")} shown`, skipped ? `, ${count(skipped)} passed over: more than 1,000 a second` : "", isPaused && waiting.length ? `, ${count(waiting.length)} wait` : "");
  }

  whileVisible(signal, (inner) => follow(`${base}/tail`, () => ({ shard: query.get("shard"), contains: query.get("contains") }), {
    signal: inner,
    event(found) {
      seen += found.records.length;
      skipped += found.skipped;
      put(found.records);
    },
    state(kind, error) {
      state.className = `livestate ${kind}`;
      replace(state, { live: "live", away: "The node does not answer; trying again…", failed: error?.message ?? "ended" }[kind]);
      if (kind !== "live") say(state.textContent);
    },
  }));
}
