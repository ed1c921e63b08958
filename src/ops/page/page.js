// Asks for page.json every two seconds and shows it. What comes is written as text only.
"use strict";

const EVERY = 2000;
const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = String(text);
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Numbers as people read them.
const grouped = (n) => Math.round(n).toLocaleString("en");
const rows = (count) => (count.exact ? grouped(count.rows) : "about " + grouped(count.rows));
const rate = (n) => (n < 10 && n % 1 !== 0 ? n.toFixed(1) : grouped(n)) + "/s";
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.00095) return (seconds * 1000).toFixed(1) + " ms";
  if (seconds < 1) return (seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[at];
  const next = units[at + 1];
  const rest = next ? Math.floor((seconds % size) / next[0]) : 0;
  return Math.floor(seconds / size) + " " + name + (rest ? " " + rest + " " + next[1] : "");
}
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return (at === 0 ? n : n.toFixed(1)) + " " + units[at];
}
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
const moment = (unix) => new Date(unix * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
const exchange = (name) => (name === null ? "everything" : name === "" ? "(default exchange)" : name);

function card(title, value, note, mood) {
  const made = element("div", "card");
  made.append(element("h3", "", title), element("p", "value " + (mood || ""), value));
  if (note) made.append(element("p", "note", note));
  return made;
}

// One chart: up to two lines over the same time.
function chart(title, times, lines, format, now) {
  const made = element("div", "card");
  const head = element("div", "chart-head");
  head.append(element("h3", "", title));
  const legend = element("span", "note");
  for (const line of lines) {
    const known = line.values.filter((value) => value !== null);
    const last = line.values.length ? line.values[line.values.length - 1] : null;
    const text = (line.name ? line.name + " " : "") +
      (last === null || last === undefined ? (known.length ? "–" : "nothing yet") : format(last));
    legend.append(element("strong", "key-" + line.key, text + " "));
  }
  head.append(legend);
  const top = Math.max(0, ...lines.flatMap((line) => line.values.filter((v) => v !== null)));
  // A quarter of an hour, or less while less is known.
  const width = Math.min(900, Math.max(120, times.length ? now - times[0] : 0));
  const from = now - width;
  const x = (at) => ((at - from) / width) * 300;
  const y = (value) => 100 - (top > 0 ? (value / top) * 94 : 0);
  const svg = drawn("svg", {
    viewBox: "0 0 300 101", preserveAspectRatio: "none", role: "img",
    "aria-label": title + ", last " + span(width) + ", at most " + format(top),
  });
  svg.append(drawn("path", { class: "grid", d: "M0 6H300M0 53H300M0 100H300" }));
  for (const line of lines) {
    let path = "";
    let before = null;
    line.values.forEach((value, at) => {
      if (value === null || times[at] < from) { before = null; return; }
      // A gap in the samples is a gap in the line.
      const joined = before !== null && times[at] - before < 20;
      path += (joined ? "L" : "M") + x(times[at]).toFixed(2) + " " + y(value).toFixed(2);
      // One sample alone is a dash, or nobody would see it.
      const next = line.values[at + 1];
      const alone = !joined && (next === null || next === undefined || times[at + 1] - times[at] >= 20);
      if (!joined) path += alone ? "h1.5" : "h0.01";
      before = times[at];
    });
    svg.append(drawn("path", { class: "line " + line.key, d: path, "stroke-linecap": "round" }));
  }
  const axis = element("div", "axis");
  axis.append(element("span", "", clock(from)), element("span", "", "most: " + format(top)),
    element("span", "", clock(now)));
  made.append(head, svg, axis);
  return made;
}

// A table, or a line that says that there is nothing to show.
function table(title, heads, lines, none) {
  const part = element("div");
  part.append(element("h2", "", title));
  if (lines.length === 0) {
    part.append(element("p", "none", none));
    return part;
  }
  const made = element("table");
  const row = (name, cells) => {
    const line = element("tr");
    cells.forEach((cell, at) => {
      const numeric = heads[at].startsWith("#") ? "number" : "";
      const [text, mood] = Array.isArray(cell) ? cell : [cell, ""];
      const place = element(name, numeric, name === "th" ? text.replace("#", "") : "");
      if (name === "td") place.append(element("span", mood, text));
      line.append(place);
    });
    return line;
  };
  made.append(row("th", heads));
  for (const line of lines) made.append(row("td", line));
  const box = element("div", "table");
  box.append(made);
  part.append(box);
  return part;
}

function tables(told) {
  const whole = told.whole;
  if (!whole) {
    const why = told.speaks
      ? "The outbox as a whole has not been measured yet: the database has not been reached."
      : "The outbox as a whole is told by the relay that holds partition 0; this one does not.";
    return [element("p", "banner", why)];
  }
  const owner = told.owner ? " – ask " + told.owner : "";
  const gone = (one) => one.silent > Math.min(15, one.lease);
  // What it said at its last sign of life is no longer so.
  const server = (one, state) => gone(one) ? "–" : state || "–";
  const state = (one) => {
    if (gone(one)) return ["silent for " + span(one.silent), "bad"];
    return one.ready ? ["ready", "good"] : [one.waits_for || "not ready", "bad"];
  };
  return [
    table("Paused", ["what", "by", "reason", "since", "until"],
      whole.pauses.map((p) => [[exchange(p.exchange), "warn"], p.by, p.reason, moment(p.since),
        p.until === null ? "resumed by hand" : moment(p.until)]),
      "Nothing is paused."),
    table("Waiting after a failure, by reason", ["#rows", "reason"],
      whole.reasons.map((r) => [grouped(r.rows), r.reason]), "No row waits after a failure."),
    table("Quarantine, by reason" + owner, ["#rows", "reason", "#oldest"],
      whole.quarantine.map((q) => [[rows(q.rows), "bad"], q.reason, span(q.oldest)]),
      "Nothing is in quarantine."),
    table("Relays", ["name", "state", "database", "broker", "#partitions", "last confirm", "version"],
      whole.instances.map((i) => [i.name, state(i), server(i, i.database), server(i, i.broker),
        i.partitions, i.last_confirm === null ? "none yet" : moment(i.last_confirm), i.version]),
      "No relay has given a sign of life."),
    table("Partitions", ["#partitions", "held by", "lease"],
      whole.partitions.filter((p) => p.owned).map((p) => [p.partitions, p.name || "unknown",
        p.valid ? ["valid", "good"] : ["over", "bad"]]),
      "No partition is held by a relay."),
    table("Holds vacuum back", ["kind", "who", "state", "#for"],
      whole.pins.map((p) => [p.kind, p.who, p.state, span(p.age)]),
      whole.sees_sessions ? "Nothing holds vacuum back."
        : "Nothing that can be seen; sessions of others need the right pg_read_all_stats."),
  ];
}

function numbers(told) {
  const whole = told.whole;
  const made = [];
  if (whole) {
    const since = "as of " + span(whole.age) + " ago";
    made.push(card("Pending", rows(whole.pending), since),
      card("Scheduled for later", rows(whole.scheduled), since),
      card("Waiting after a failure", rows(whole.waiting), since, whole.waiting.rows ? "warn" : ""),
      card("Blocked keys", rows(whole.blocked_keys), since, whole.blocked_keys.rows ? "warn" : ""));
  }
  const p = told.publishes;
  made.push(
    card("In flight", grouped(told.in_flight), bytes(told.buffered_bytes) + " buffered"),
    card("Confirmed since start", grouped(p.confirmed),
      "returned " + grouped(p.returned) + ", refused " + grouped(p.nacked) + ", unknown " + grouped(p.unknown)),
    card("Partitions held", told.partitions_held, "of 256"));
  if (whole && whole.dead_tuples !== null) {
    made.push(card("Dead row versions", grouped(whole.dead_tuples), "sent rows removed: " + grouped(told.removed)));
  }
  return made;
}

function show(told) {
  const { readiness, series } = told;
  document.title = (readiness.ready ? "" : "! ") + "outbox-relay " + told.outbox;
  byId("outbox").textContent = told.outbox;
  byId("who").textContent = told.instance + ", version " + told.version + ", " + moment(told.at);
  const verdict = byId("verdict");
  verdict.textContent = readiness.ready ? "ready" : "not ready";
  verdict.className = "badge " + (readiness.ready ? "good" : "bad");
  const mood = (part) => (part.ok ? (["connected", "idle", "progressing"].includes(part.state) ? "good" : "warn") : "bad");
  const again = (n) => (n ? "connected anew " + (n === 1 ? "once" : grouped(n) + " times") : "");
  const part = (title, one, note) =>
    card(title, one.state.replace("_", " "), [one.reason, note].filter(Boolean).join(" · "), mood(one));
  const confirm = told.last_confirm === null ? "nothing confirmed since the start"
    : "last confirm " + span(Math.max(0, told.at - told.last_confirm)) + " ago";
  byId("parts").replaceChildren(
    part("PostgreSQL", readiness.database, again(told.reconnects.database)),
    part("RabbitMQ", readiness.broker, again(told.reconnects.broker)),
    part("Due rows", readiness.progress, confirm));
  const one = (values) => [{ key: "one", name: "", values }];
  byId("charts").replaceChildren(
    chart("Throughput, confirmed rows", series.at, one(series.rate), rate, told.at),
    chart("Latency, written to confirmed", series.at, [
      { key: "one", name: "p50", values: series.p50 },
      { key: "two", name: "p99", values: series.p99 }], span, told.at),
    chart("Backlog, pending rows", series.at, one(series.pending), grouped, told.at),
    chart("Age of the oldest due row", series.at, one(series.oldest), span, told.at));
  byId("numbers").replaceChildren(...numbers(told));
  byId("tables").replaceChildren(...tables(told));
}

async function ask() {
  try {
    const answer = await fetch("page.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    show(await answer.json());
    byId("banner").hidden = true;
    document.body.classList.remove("stale");
  } catch (error) {
    const banner = byId("banner");
    if (banner.hidden) {
      banner.textContent = "No answer from the relay since " + clock(Date.now() / 1000) + " (" + error.message + ").";
    }
    banner.hidden = false;
    document.body.classList.add("stale");
  }
  setTimeout(ask, EVERY);
}

ask();
