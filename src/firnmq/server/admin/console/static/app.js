// The frame around the views: navigation, addresses, keys, appearance.

import { add, address, h, replace, say } from "./dom.js";
import { ApiError, loadSession, may, session, signOut } from "./api.js";
import { failure, heading } from "./widgets.js";

const VIEWS = [
  { name: "", text: "Overview", module: "./overview.js", key: "o" },
  { name: "topics", text: "Topics", module: "./topics.js", key: "t" },
  { name: "groups", text: "Groups", module: "./groups.js", key: "g" },
  { name: "tiering", text: "Tiering", module: "./tiering.js", key: "i" },
  { name: "lake", text: "Lake", module: "./lake.js", key: "l" },
  { name: "sql", text: "SQL", module: "./sql.js", key: "s", role: "administer" },
  { name: "cluster", text: "Cluster", module: "./cluster.js", key: "c" },
  { name: "users", text: "Users", module: "./users.js", key: "u", role: "administer" },
  { name: "rules", text: "Rules", module: "./rules.js", key: "r", role: "administer" },
];
const SIGN_IN = { name: "sign-in", text: "Sign in", module: "./signin.js" };
const THEMES = ["auto", "light", "dark"];
const THEME = "firn.theme";

const main = document.getElementById("main");
const bar = document.getElementById("bar");
let running = new AbortController();
let isFirst = true;

export function go(to, { replaces = false } = {}) {
  history[replaces ? "replaceState" : "pushState"](null, "", to);
  return show();
}

/** Shows the address again: after a change, for example. */
export function again() {
  return show({ keepsPlace: true });
}

async function show({ keepsPlace = false } = {}) {
  running.abort();
  running = new AbortController();
  const signal = running.signal;
  const parts = location.pathname.split("/").slice(1).map(decoded);
  const view = parts[0] === SIGN_IN.name ? SIGN_IN : VIEWS.find((each) => each.name === parts[0]);
  drawBar(view);
  let content;
  let title = view?.text ?? "Not found";
  try {
    if (!view) throw new ApiError(404, "NotFound", "The console has no such page.");
    const context = { parts: parts.slice(1), query: new URLSearchParams(location.search), signal, go, again };
    const module = await import(view.module);
    const made = await module.view(context);
    title = made.title ?? title;
    content = made.element;
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) {
      go(address([SIGN_IN.name], { next: location.pathname + location.search }), { replaces: true });
      return;
    }
    content = h("div", {}, heading(title), failure(error));
  }
  if (signal.aborted) return;
  replace(main, content);
  document.title = `${title} – FirnMQ`;
  main.dataset.view = view?.name || "overview";
  main.dataset.shown = location.pathname + location.search;
  if (!keepsPlace) {
    window.scrollTo(0, 0);
    if (!isFirst) (main.querySelector("h1") ?? main).focus({ preventScroll: true });
    say(title);
  }
  isFirst = false;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function drawBar(current) {
  const seen = VIEWS.filter((each) => !each.role || may(each.role))
    .filter((each) => each.name !== "cluster" || session.cluster);
  const theme = localStorage.getItem(THEME) ?? "auto";
  const isIn = current !== SIGN_IN;
  replace(bar,
    h("a", { href: "/", class: "brand" }, h("img", { src: "/assets/icon.svg", alt: "", width: 22, height: 22 }), "FirnMQ"),
    isIn ? h("nav", { "aria-label": "Views", class: "views" }, ...seen.map((each) => h("a", {
      href: `/${each.name}`, "aria-current": each === current ? "page" : null,
    }, each.text))) : null,
    h("div", { class: "corner" },
      isIn && session.needs_token ? h("span", { class: "who", title: `role: ${session.role}` }, `${session.name} · ${session.role}`) : null,
      h("button", {
        type: "button", class: "plain", onclick: () => {
          const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
          localStorage.setItem(THEME, next);
          dress();
          drawBar(current);
          bar.querySelector("button").focus();
        },
      }, `Colours: ${theme}`),
      isIn && session.needs_token ? h("button", {
        type: "button", class: "plain", onclick: async () => {
          await signOut();
          go("/sign-in");
        },
      }, "Sign out") : null,
      h("button", { type: "button", class: "plain keys", onclick: showKeys }, "Keys")));
}

function dress() {
  const theme = localStorage.getItem(THEME) ?? "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

const KEYS = [["/", "go to the filter or search field"], ["[ and ]", "previous and next page of a list"], ["?", "show these keys"]];

function showKeys() {
  const box = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"),
    h("dl", { class: "keylist" }, ...[...VIEWS.map((each) => [`g ${each.key}`, each.text]), ...KEYS]
      .map(([key, text]) => add(h("div"), [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]))),
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => box.close() }, "Close")));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

let isGoing = 0;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isView = Date.now() - isGoing < 1500;
  isGoing = 0;
  const view = isView && VIEWS.find((each) => each.key === event.key);
  if (view) go(`/${view.name}`);
  else if (event.key === "g") isGoing = Date.now();
  else if (event.key === "?") showKeys();
  else if (event.key === "/") main.querySelector("input[type=search], input")?.focus();
  else if (event.key === "[") main.querySelector(".page-previous:enabled")?.click();
  else if (event.key === "]") main.querySelector(".page-next:enabled")?.click();
  else return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const to = anchor.getAttribute("href");
  if (!to.startsWith("/") || to.startsWith("/v1/") || anchor.target || anchor.hasAttribute("download")) return;
  event.preventDefault();
  go(to);
});

window.addEventListener("popstate", () => show());

async function begin() {
  dress();
  try {
    await loadSession();
  } catch (error) {
    if (error.status !== 401) {
      replace(main, h("div", {}, heading("FirnMQ"), failure(error)));
      return;
    }
    session.needs_token = true;
    if (location.pathname !== "/sign-in") {
      const next = location.pathname + location.search;
      history.replaceState(null, "", address(["sign-in"], next === "/" ? {} : { next }));
    }
  }
  await show();
}

begin();
