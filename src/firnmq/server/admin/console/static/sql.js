// SQL over history and what is not in a table yet.

import { change, get, may } from "./api.js";
import { address, h, replace, say } from "./dom.js";
import { some } from "./format.js";
import { failure, field, heading, select } from "./widgets.js";

export async function view({ query, signal, go }) {
  if (!may("administer")) throw new Error("Only the role administer may run SQL.");
  const ready = await get("/v1/sql", {}, signal);
  const text = h("textarea", { rows: 6, spellcheck: "false", autocomplete: "off", placeholder: "SELECT key, count(*) FROM orders GROUP BY key" });
  text.value = query.get("query") ?? "";
  const most = select([["100", "100 rows"], ["200", "200 rows"], ["1000", "1,000 rows"]], query.get("max") ?? "200");
  const results = h("div", { class: "results", role: "status" });
  const send = h("button", { type: "submit", class: "primary", disabled: !ready.available }, "Run");
  const form = h("form", {
    class: "sqlform",
    onsubmit: (event) => {
      event.preventDefault();
      history.replaceState(null, "", address(["sql"], { query: text.value, max: most.value === "200" ? "" : most.value }));
      ask();
    },
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    },
  }, field("Query", text, "Ctrl+Enter runs it. It reads topics and does nothing else."), h("div", { class: "buttons" }, send, h("label", { class: "inline" }, "At most ", most)));

  async function ask() {
    send.disabled = true;
    const begun = Date.now();
    const clock = setInterval(() => replace(results, h("p", { class: "quiet" }, `Running for ${Math.round((Date.now() - begun) / 1000)} s. The first query starts Spark, which takes about ten seconds.`)), 500);
    try {
      const found = await change("POST", "/v1/sql", { query: text.value, max: Number(most.value) });
      clearInterval(clock);
      replace(results, h("p", { class: "quiet" }, `${some(found.rows.length, "row")}${found.has_more ? ", and there are more" : ""} in ${found.seconds.toFixed(1)} s`), tableOf(found));
      say(some(found.rows.length, "row"));
    } catch (error) {
      clearInterval(clock);
      replace(results, failure(error));
    } finally {
      send.disabled = false;
    }
  }

  signal.addEventListener("abort", () => replace(results));
  return {
    title: "SQL",
    element: h("div", {}, heading("SQL"),
      h("p", { class: "quiet" }, "Every topic is a table: converted records come from its files, newer ones from the log. Columns are shard, offset, timestamp, key, value, headers and tags, or those of the topic's schema."),
      ready.available ? null : h("p", { class: "failure" }, ready.reason), form, results),
    go,
  };
}

function tableOf(found) {
  if (!found.columns.length) return null;
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Result" },
    h("table", {}, h("caption", { class: "vh" }, "Result"),
      h("thead", {}, h("tr", {}, ...found.columns.map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, ...found.rows.map((row) => h("tr", {}, ...row.map((value) =>
        h("td", { class: typeof value === "number" ? "number" : "text" }, shownValue(value))))))));
}

function shownValue(value) {
  if (value === null) return h("i", {}, "null");
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "number" && Number.isInteger(value) ? String(value) : String(value);
}

