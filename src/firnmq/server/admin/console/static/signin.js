// The page for nodes that require a token.

import { session, signIn } from "./api.js";
import { h } from "./dom.js";
import { field, run } from "./widgets.js";

export async function view({ query, go }) {
  const token = h("input", { type: "password", required: true, autocomplete: "current-password", spellcheck: "false" });
  const outcome = h("div");
  const send = h("button", { type: "submit", class: "primary" }, "Sign in");
  const next = query.get("next") ?? "/";
  const form = h("form", {
    class: "card signin",
    onsubmit: async (event) => {
      event.preventDefault();
      const isIn = await run(send, outcome, async () => {
        await signIn(token.value.trim());
      });
      // Only addresses of this console: //host would lead elsewhere.
      if (isIn) go(/^\/(?!\/)/.test(next) && !next.startsWith("/sign-in") ? next : "/");
      else token.select();
    },
  },
  h("h1", { tabindex: -1 }, "Sign in"),
  h("p", { class: "quiet" }, "This node requires a token. Its own is in the file ", h("code", {}, "admin.token"),
    " of the data directory; others are in the file that ", h("code", {}, "tokens_file"), " of [admin] names."),
  field("Token", token), outcome, h("div", { class: "buttons" }, send));
  session.needs_token = true;
  return { title: "Sign in", element: form };
}
