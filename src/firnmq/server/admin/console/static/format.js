// Numbers, sizes and times as people read them; every number has its unit.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function count(number) {
  return number === null || number === undefined ? "–" : WHOLE.format(number);
}

export function some(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

function scaled(number, units) {
  let unit = 0;
  let value = Math.abs(number);
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 ? (value < 10 && value % 1 ? 1 : 0) : value < 10 ? 2 : value < 100 ? 1 : 0;
  return [(number < 0 ? "−" : "") + value.toFixed(digits), units[unit]];
}

/** Decimal units: 1 MB is 10⁶ bytes. */
export function bytes(number) {
  if (number === null || number === undefined) return "–";
  return scaled(number, UNITS).join("\u00a0");
}

export function rate(number, unit) {
  if (number === null || number === undefined) return "–";
  if (unit === "B") return `${bytes(number)}/s`;
  if (unit === "%") return `${(number * 100).toFixed(number < 0.1 ? 1 : 0)}\u00a0%`;
  const value = Math.abs(number) < 10 && number % 1 ? number.toFixed(1) : WHOLE.format(number);
  return unit ? `${value}\u00a0${unit}/s` : `${value}/s`;
}

const two = (number) => String(number).padStart(2, "0");

/** Local time, to the millisecond. */
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return count(ms) + " ms";
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function shortTime(ms) {
  return ms === null || ms === undefined || ms < 0 ? "–" : time(ms).slice(0, 19);
}

export function clock(at) {
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function ago(ms, now = Date.now()) {
  if (ms === null || ms === undefined || ms < 0) return "never";
  return `${duration(Math.max(now - ms, 0))} ago`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const steps = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];
  for (const [size, unit] of steps) {
    if (ms >= size) {
      const value = ms / size;
      return `${value < 10 && unit !== "s" ? value.toFixed(1).replace(/\.0$/, "") : Math.floor(value)} ${unit}`;
    }
  }
  return `${Math.round(ms)} ms`;
}

/** What an input of type datetime-local takes: local time. */
export function forInput(ms) {
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day}T${clock(at)}`;
}

export function zone() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
}

/** The bytes of base64, as lines of hexadecimal digits with what is printable beside them. */
export function hexDump(base64) {
  const raw = atob(base64);
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = raw.slice(at, at + 16);
    const digits = [...part].map((each) => each.charCodeAt(0).toString(16).padStart(2, "0"));
    const text = [...part].map((each) => (each >= " " && each <= "~" ? each : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits.join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** The text of a JSON document with its lines indented; null if it is none. Numbers stay as they
 * are written: a parser would round large ones. */
export function prettyJson(text) {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || trimmed.length > 1_000_000) return null;
  try {
    JSON.parse(trimmed);
  } catch {
    return null;
  }
  let out = "";
  let depth = 0;
  let inText = false;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 100));
  for (let at = 0; at < trimmed.length; at += 1) {
    const each = trimmed[at];
    if (inText) {
      out += each;
      if (each === "\\") out += trimmed[++at];
      else if (each === '"') inText = false;
    } else if (each === '"') {
      out += each;
      inText = true;
    } else if (each === "{" || each === "[") {
      const rest = /^\s*[}\]]/.exec(trimmed.slice(at + 1, at + 40));
      if (rest) {
        out += each + rest[0].trim();
        at += rest[0].length;
      } else {
        depth += 1;
        out += each + line();
      }
    } else if (each === "}" || each === "]") {
      depth -= 1;
      out += line() + each;
    } else if (each === ",") {
      out += each + line();
    } else if (each === ":") {
      out += ": ";
    } else if (!/\s/.test(each)) {
      out += each;
    }
  }
  return out;
}
