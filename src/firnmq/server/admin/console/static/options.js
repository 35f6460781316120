// A topic's options, to look at and to change.

import { change, get, may } from "./api.js";
import { h, replace } from "./dom.js";
import { badge, run } from "./widgets.js";

export async function view({ topic, signal, again }) {
  const path = `/v1/topics/${encodeURIComponent(topic.topic)}`;
  const options = await get(`${path}/options`, {}, signal);
  const outcome = h("div");
  const inputs = new Map();
  const buttons = h("div", { class: "buttons sticky", hidden: true });
  const changes = () => Object.fromEntries([...inputs].filter(([name, input]) => input.value !== (values.get(name) ?? ""))
    .map(([name, input]) => [name, input.value === "" ? null : input.value]));
  const values = new Map(options.map((each) => [each.name, each.value]));
  const send = (dryRun) => async () => {
    const found = await change("PATCH", `${path}/config`, { options: changes(), dry_run: dryRun });
    if (dryRun) return `The node would take ${Object.keys(changes()).join(", ")}. Nothing has changed.`;
    again();
    return `Changed ${Object.keys(found.options).length ? Object.keys(changes()).join(", ") : ""}.`;
  };
  const look = () => { buttons.hidden = !Object.keys(changes()).length; };
  const rows = options.map((each) => {
    const isEditable = may("operate") && !each.is_fixed;
    let cell = each.value ?? h("i", {}, "no limit");
    if (isEditable) {
      const input = h("input", {
        value: each.value ?? "", placeholder: "no limit", "aria-label": each.name, autocomplete: "off", spellcheck: "false", oninput: look,
      });
      inputs.set(each.name, input);
      cell = input;
    }
    return h("tr", {},
      h("th", { scope: "row" }, h("code", {}, each.name)),
      h("td", { class: "text" }, cell),
      h("td", { class: "text quiet" }, each.default ?? "no limit", each.value === each.default ? null : [" ", badge("changed", "info")]),
      h("td", { class: "quiet" }, each.text, each.is_fixed ? [" ", badge("fixed when the topic is made")] : null));
  });
  const apply = h("button", { type: "button", class: "primary", onclick: () => run(apply, outcome, send(false)) }, "Save changes");
  const test = h("button", { type: "button", onclick: () => run(test, outcome, send(true)) }, "Check only");
  const undo = h("button", {
    type: "button", onclick: () => {
      for (const [name, input] of inputs) input.value = values.get(name) ?? "";
      replace(outcome);
      look();
    },
  }, "Undo");
  buttons.append(undo, test, apply);
  return {
    element: h("div", {},
      h("p", { class: "quiet" }, may("operate") ? "An empty field puts an option back to the node's default." : "Your role may look at options and not change them."),
      h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Options" },
        h("table", { class: "options" }, h("caption", { class: "vh" }, "Options"),
          h("thead", {}, h("tr", {}, ...["Option", "Value", "Default of the node", "What it is for"].map((each) => h("th", { scope: "col" }, each)))),
          h("tbody", {}, ...rows))),
      outcome, buttons),
  };
}

