// Who may do what: the access rules.

import { change, may } from "./api.js";
import { h } from "./dom.js";
import { badge, dialog, field, heading, list, select } from "./widgets.js";

const OPERATIONS = ["all", "read", "write", "create", "delete", "alter", "describe", "cluster_action", "describe_configs", "alter_configs", "idempotent_write"];
const KINDS = ["topic", "group", "transactional_id", "cluster"];
const PATTERNS = [["literal", "exactly this name"], ["prefixed", "every name that begins so"]];
const both = (names) => names.map((each) => [each, each.replaceAll("_", " ")]);

export async function view(context) {
  if (!may("administer")) throw new Error("Only the role administer may see rules.");
  const made = list(context, {
    caption: "Rules", path: "/v1/pages/rules",
    columns: [
      { name: "Principal", key: "principal", cell: (row) => h("span", { class: "name" }, row.principal) },
      { name: "May", cell: (row) => badge(row.permission, row.permission === "deny" ? "bad" : "good") },
      { name: "Operation", cell: (row) => row.operation.replaceAll("_", " ") },
      { name: "On", key: "resource_type", cell: (row) => row.resource_type.replaceAll("_", " ") },
      { name: "Name", key: "name", cell: (row) => row.pattern === "prefixed" ? [row.name, " ", badge("and longer")] : row.name },
      { name: "From host", cell: (row) => row.host },
      { name: "What to do", cell: (row) => h("button", { type: "button", class: "danger", "aria-label": `Remove the rule of ${row.principal} on ${row.name}`, onclick: () => remove(made, row) }, "Remove") },
    ],
    sort: "principal", filterName: "Filter by principal or name",
    empty: "There are no rules. They count if authorization of [security] is on.",
  });
  return {
    title: "Rules",
    element: h("div", {}, heading("Rules", h("button", { type: "button", class: "primary", onclick: () => addRule(made) }, "Add a rule")),
      h("p", { class: "quiet" }, "With authorization on, a client may do what a rule allows. A rule that denies wins. They are Kafka's ACLs."),
      made.element),
  };
}

function addRule(made) {
  const principal = h("input", { required: true, value: "User:", autocomplete: "off", spellcheck: "false" });
  const permission = select([["allow", "may"], ["deny", "may not"]], "allow");
  const operation = select(both(OPERATIONS), "read");
  const kind = select(both(KINDS), "topic", { onchange: () => { if (kind.value === "cluster") name.value = "kafka-cluster"; } });
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const pattern = select(PATTERNS, "literal");
  const host = h("input", { required: true, value: "*", autocomplete: "off" });
  dialog("Add a rule", [
    field("Principal", principal, "User:ann, or User:* for all."), field("Permission", permission), field("Operation", operation),
    field("On a", kind), field("Name", name, "* is every name."), field("Which names", pattern), field("From host", host, "An IP address, or * for all."),
  ], "Add", async () => {
    const rule = {
      principal: principal.value, permission: permission.value, operation: operation.value, resource_type: kind.value,
      name: name.value, pattern: pattern.value, host: host.value,
    };
    await change("POST", "/v1/rules", { rules: [rule] });
    await made.load();
  });
}

function remove(made, rule) {
  dialog("Remove the rule?", [h("p", {}, `${rule.principal} ${rule.permission === "deny" ? "may not" : "may"} ${rule.operation} the ${rule.resource_type} ${rule.name}.`)], "Remove", async () => {
    await change("POST", "/v1/rules/removals", rule);
    await made.load();
  }, { danger: true });
}
