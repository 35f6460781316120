// Curves over the last minutes. Each says its unit, its present and its greatest value.

import { add, h, replace, svg } from "./dom.js";
import { clock, rate } from "./format.js";

const WIDTH = 600;
const HEIGHT = 120;
const SPAN_MS = 30 * 60 * 1000;
const STEP_MS = 2000;

/** `curves`: {name, key, kind}; `unit`: of a value per second, or % of one. */
export function chart(title, unit, curves) {
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "plot", "aria-hidden": "true" });
  const legend = h("div", { class: "legend" });
  const top = h("span", { class: "top" });
  const ends = h("div", { class: "ends", "aria-hidden": "true" });
  const spoken = h("p", { class: "vh" });
  const figure = h("figure", { class: "chart" },
    h("figcaption", {}, h("strong", {}, title), " ", h("span", { class: "quiet" }, unit === "%" ? "% of a core" : `${unit} per second`)),
    legend, h("div", { class: "plotbox" }, top, plot), ends, spoken);
  let samples = [];
  let pointed = null;

  plot.addEventListener("pointermove", (event) => {
    pointed = (event.clientX - plot.getBoundingClientRect().left) / plot.getBoundingClientRect().width;
    draw();
  });
  plot.addEventListener("pointerleave", () => {
    pointed = null;
    draw();
  });

  function draw() {
    if (!samples.length) {
      replace(legend, h("span", { class: "quiet" }, "The first numbers come in a few seconds."));
      return;
    }
    const end = samples.at(-1).time_ms;
    const begin = Math.max(end - SPAN_MS, Math.min(samples[0].time_ms, end - 60_000));
    const seen = samples.filter((each) => each.time_ms >= begin);
    const most = Math.max(...seen.flatMap((each) => curves.map((curve) => each[curve.key])), unit === "%" ? 0.05 : 1);
    const x = (ms) => ((ms - begin) / Math.max(end - begin, 1)) * WIDTH;
    const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 8);
    replace(plot, [0.25, 0.5, 0.75].map((part) =>
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part, class: "grid" })));
    for (const curve of curves) {
      const lines = [[]];
      seen.forEach((each, at) => {
        // A gap in time is a gap in the curve.
        if (at && each.time_ms - seen[at - 1].time_ms > 3 * STEP_MS) lines.push([]);
        lines.at(-1).push(`${x(each.time_ms).toFixed(1)},${y(each[curve.key]).toFixed(1)}`);
      });
      add(plot, lines.map((points) => svg("polyline", { points: points.join(" "), class: `curve ${curve.kind}` })));
    }
    let shown = seen.at(-1);
    if (pointed !== null) {
      const at = begin + pointed * (end - begin);
      shown = seen.reduce((best, each) => Math.abs(each.time_ms - at) < Math.abs(best.time_ms - at) ? each : best);
      add(plot, [svg("line", { x1: x(shown.time_ms), x2: x(shown.time_ms), y1: 0, y2: HEIGHT, class: "pointer" })]);
    }
    replace(legend, curves.map((curve) => h("span", { class: `key ${curve.kind}` },
      curve.name, " ", h("b", {}, rate(shown[curve.key], unit)))));
    replace(top, `${rate(most, unit)}`);
    replace(ends, h("span", {}, clock(new Date(begin))), h("span", {}, pointed === null ? "now" : clock(new Date(shown.time_ms))));
    replace(spoken, curves.map((curve) => `${curve.name}: now ${rate(seen.at(-1)[curve.key], unit)}, at most ${
      rate(Math.max(...seen.map((each) => each[curve.key])), unit)}. `));
  }

  draw();
  return { element: figure, show(given) { samples = given; draw(); } };
}
