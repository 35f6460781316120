// Users of the Kafka listener.

import { change, may } from "./api.js";
import { h } from "./dom.js";
import { dialog, field, heading, list } from "./widgets.js";

export async function view(context) {
  if (!may("administer")) throw new Error("Only the role administer may see users.");
  const made = list(context, {
    caption: "Users", path: "/v1/pages/users",
    columns: [
      { name: "User", cell: (row) => row },
      { name: "What to do", cell: (row) => h("div", { class: "buttons" },
        h("button", { type: "button", "aria-label": `New password for ${row}`, onclick: () => password(made, row) }, "New password"),
        h("button", { type: "button", class: "danger", "aria-label": `Remove ${row}`, onclick: () => remove(made, row) }, "Remove")) },
    ],
    sort: "user", filterName: "Filter by name",
    empty: "There are no users. The Kafka listener asks for one if sasl_mechanisms of [security] names a mechanism.",
  });
  return {
    title: "Users",
    element: h("div", {}, heading("Users", h("button", { type: "button", class: "primary", onclick: () => password(made, null) }, "Add a user")),
      h("p", { class: "quiet" }, "They log in to the Kafka listener by SASL. The node keeps a salted hash of each password."),
      made.element),
  };
}

function password(made, user) {
  const name = h("input", { required: true, value: user ?? "", readonly: user !== null, autocomplete: "off", spellcheck: "false" });
  const first = h("input", { type: "password", required: true, autocomplete: "new-password" });
  const second = h("input", { type: "password", required: true, autocomplete: "new-password" });
  dialog(user === null ? "Add a user" : `New password for ${user}`, [
    field("Name", name), field("Password", first), field("Password again", second),
  ], user === null ? "Add" : "Save", async () => {
    if (first.value !== second.value) throw new Error("The two passwords differ.");
    await change("PUT", `/v1/users/${encodeURIComponent(name.value)}`, { password: first.value });
    await made.load();
  });
}

function remove(made, user) {
  dialog(`Remove ${user}?`, [h("p", {}, "Its connections are closed. Its rules stay: a user who is added under this name has them.")], "Remove", async () => {
    await change("DELETE", `/v1/users/${encodeURIComponent(user)}`);
    await made.load();
  }, { danger: true });
}
