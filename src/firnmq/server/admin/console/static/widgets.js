// Parts that several views have: headings, lists, dialogs, messages.

import { add, address, h, replace, say } from "./dom.js";
import { get } from "./api.js";
import { count, some } from "./format.js";

export function heading(title, ...beside) {
  return h("div", { class: "heading" }, h("h1", { tabindex: -1 }, title), h("div", { class: "actions" }, ...beside));
}

export function card(title, ...content) {
  const id = `c${++numbers}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), ...content);
}

let numbers = 0;

export function failure(error) {
  return h("p", { class: "failure", role: "alert" }, error.message || String(error));
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function tile(name, value, more = null, kind = "") {
  return h("div", { class: `tile ${kind}` }, h("dt", {}, name), h("dd", {}, value),
    more === null ? null : h("dd", { class: "more" }, more));
}

export function field(name, input, hint = null) {
  input.id ||= `f${++numbers}`;
  const label = h("label", { for: input.id }, name);
  if (hint === null) return h("div", { class: "field" }, label, input);
  const id = `f${++numbers}`;
  input.setAttribute("aria-describedby", id);
  return h("div", { class: "field" }, label, input, h("small", { id }, hint));
}

export function select(options, value, attributes = {}) {
  const box = h("select", attributes, ...options.map(([key, text]) => h("option", { value: key }, text)));
  box.value = value;
  return box;
}

export function tabs(name, entries, current) {
  return h("nav", { class: "tabs", "aria-label": name }, ...entries.map(([key, text, to]) =>
    h("a", { href: to, "aria-current": key === current ? "page" : null }, text)));
}

/** A plain table. `columns`: {name, number, cell(row)}. */
export function table(caption, columns, rows, { empty = "Nothing here." } = {}) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `${caption}: table` },
    h("table", {}, h("caption", { class: "vh" }, caption),
      h("thead", {}, h("tr", {}, ...columns.map((each) =>
        h("th", { scope: "col", class: each.number ? "number" : null }, each.name)))),
      h("tbody", {}, ...rows.map((row) => bodyRow(columns, row)))));
}

function bodyRow(columns, row) {
  return h("tr", {}, ...columns.map((each, at) => h(at === 0 ? "th" : "td", {
    scope: at === 0 ? "row" : null, class: each.number ? "number" : null, "data-name": each.name,
  }, each.cell(row))));
}

const PAGE = 50;
const REFRESH_MS = 5000;

/**
 * A list that the node filters, sorts and pages. What is shown is in the address, so that it can be
 * shared. `columns`: {name, key, number, cell(row)}; those with a key can be sorted by.
 */
export function list(context, { caption, path, columns, sort, falling = [], filterName, more = {}, empty, onPage }) {
  const { query, signal } = context;
  const state = {
    filter: query.get("filter") ?? "",
    sort: query.get("sort") ?? sort,
    descending: query.get("descending") ?? String(falling.includes(query.get("sort") ?? sort)),
    start: Number(query.get("start") ?? 0) || 0,
  };
  const body = h("tbody");
  const where = h("span", { class: "quiet", role: "status" });
  const problem = h("div");
  const previous = h("button", { type: "button", class: "page-previous", onclick: () => turn(-PAGE) }, "Previous");
  const next = h("button", { type: "button", class: "page-next", onclick: () => turn(PAGE) }, "Next");
  const filter = h("input", {
    type: "search", value: state.filter, placeholder: filterName, "aria-label": filterName,
    class: "filter", autocomplete: "off", spellcheck: "false",
    oninput: () => {
      clearTimeout(filter.timer);
      filter.timer = setTimeout(() => {
        Object.assign(state, { filter: filter.value, start: 0 });
        load();
      }, 150);
    },
  });
  const heads = columns.map((each) => headOf(each));
  const whole = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `${caption}: table` },
    h("table", {}, h("caption", { class: "vh" }, caption),
      h("thead", {}, h("tr", {}, ...heads)), body));

  function headOf(column) {
    const cell = h("th", { scope: "col", class: column.number ? "number" : null });
    if (!column.key) return add(cell, [column.name]);
    return add(cell, [h("button", {
      type: "button", class: "sort",
      onclick: () => {
        const same = state.sort === column.key;
        state.descending = String(same ? state.descending !== "true" : falling.includes(column.key));
        Object.assign(state, { sort: column.key, start: 0 });
        load();
      },
    }, column.name)]);
  }

  function turn(by) {
    state.start = Math.max(state.start + by, 0);
    load().then(() => whole.scrollIntoView({ block: "nearest" }));
  }

  function share() {
    const wanted = new URLSearchParams(location.search);
    const usual = String(falling.includes(state.sort));
    const set = (name, value, plain) => value === plain ? wanted.delete(name) : wanted.set(name, value);
    set("filter", state.filter, "");
    set("sort", state.sort, sort);
    set("descending", state.descending, usual);
    set("start", String(state.start), "0");
    const text = wanted.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  }

  let asked = 0;
  async function load({ quiet = false } = {}) {
    const mine = ++asked;
    if (!quiet) share();
    columns.forEach((each, at) => {
      const order = state.descending === "true" ? "descending" : "ascending";
      if (each.key === state.sort) heads[at].setAttribute("aria-sort", order);
      else heads[at].removeAttribute("aria-sort");
    });
    try {
      const page = await get(path, { ...state, max: PAGE, ...more }, signal);
      if (mine !== asked) return;
      replace(problem);
      const rows = page.rows;
      if (rows.length) replace(body, rows.map((row) => bodyRow(columns, row)));
      else replace(body, h("tr", {}, h("td", { colspan: columns.length, class: "quiet" },
        state.filter ? `Nothing with “${state.filter}” in its name.` : empty ?? "Nothing here.")));
      const last = state.start + rows.length;
      replace(where, page.total ? `${count(rows.length ? state.start + 1 : 0)}–${count(last)} of ${count(page.total)}` : "");
      previous.disabled = state.start === 0;
      next.disabled = last >= page.total;
      if (!quiet && state.filter) say(some(page.total, "match", "matches"));
      onPage?.(page);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (mine === asked) replace(problem, failure(error));
    }
  }

  const bar = h("div", { class: "listbar" }, filterName ? filter : null,
    h("span", { class: "grow" }), where, previous, next);
  load();
  const timer = setInterval(() => {
    // Not under the eyes of a user who has gone into the rows, by keyboard or to select text.
    const isBusy = body.contains(document.activeElement) || body.contains(getSelection().anchorNode);
    if (!document.hidden && !isBusy) load({ quiet: true });
  }, REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { element: h("div", { class: "list" }, bar, problem, whole), load, state };
}

/** Runs an action and shows how it ended. Buttons are disabled meanwhile. */
export async function run(button, outcome, action) {
  button.disabled = true;
  try {
    const text = await action();
    replace(outcome, text ? h("p", { class: "done", role: "status" }, text) : "");
    return true;
  } catch (error) {
    replace(outcome, failure(error));
    return false;
  } finally {
    button.disabled = false;
  }
}

/** A dialog with a form; `action` gets called when it is sent, and the dialog closes if it ends well. */
export function dialog(title, content, sendText, action, { danger = false } = {}) {
  const outcome = h("div");
  const send = h("button", { type: "submit", class: danger ? "danger" : "primary" }, sendText);
  const id = `d${++numbers}`;
  const box = h("dialog", { "aria-labelledby": id },
    h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        if (await run(send, outcome, action)) box.close();
      },
    }, h("h2", { id }, title), ...[content].flat(), outcome,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => box.close() }, "Cancel"), send)));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

export function topicLink(name, view = [], parameters = {}) {
  return h("a", { href: address(["topics", name, ...view], parameters), class: "name" }, name);
}

export function groupLink(name) {
  return h("a", { href: address(["groups", name]), class: "name" }, name);
}
