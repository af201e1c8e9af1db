// The chief's page. It draws the data that arrives as events from /events. Everything that comes from the cluster is
// set as text and never as markup, because users choose the names. Styles are set through properties and never through
// attributes, because the page's content security policy forbids style attributes.

"use strict";

const POINTS_MAX = 20000;
const LOG_MAX = 500;
const DENSE_FROM = 25;
const FINDINGS_MAX = 6;
const SILENT_MS = 12000;
const RETRY_MS = [500, 1000, 2000, 4000];
const BUSY_HIGH = 0.85;
const PHASES = ["input", "compute", "filter", "exchange", "hooks"];
const SVG = "http://www.w3.org/2000/svg";

const state = { job: null, points: [], log: [], logKeys: new Set(), placement: null, open: new Set(), axis: "step", hover: null };

// ---- Values and elements

const id = (name) => document.getElementById(name);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const taskName = (task) => `${task.job}/${task.index}`;
const shardName = (shard) => `ps/${shard.ps}/shard/${shard.shard}`;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function glyph(name, className) {
  const svg = draw("svg", { class: `glyph ${className || ""}`, "aria-hidden": "true" });
  svg.append(draw("use", { href: `#glyph-${name}` }));
  return svg;
}

// Changes the page only where a value differs.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function mark(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}
function width(element, share) {
  element.style.width = `${(clamp(share, 0, 1) * 100).toFixed(1)}%`;
}

function whole(value) {
  return isNumber(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f") : "–";
}
function rate(value) {
  if (!isNumber(value)) return "–";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1000 || value === 0) return whole(value);
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
function real(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4);
}
function micros(us) {
  if (!isNumber(us)) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e4 ? 2 : us < 1e5 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
}
function bytes(count) {
  if (!isNumber(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit === 0 || count >= 100 ? count.toFixed(0) : count.toFixed(1)} ${units[unit]}`;
}
function duration(ms) {
  if (!isNumber(ms)) return "–";
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
function shortDuration(ms) {
  const s = Math.round(ms / 1000);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}
// Formats a duration as a clock does, such as 2:05 or 1:02:05.
function countdown(ms) {
  if (!isNumber(ms)) return "–";
  const s = Math.round(ms / 1000);
  const two = (value) => String(value).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
const ago = (ms) => (isNumber(ms) ? (ms < 1000 ? "now" : `${shortDuration(ms)} ago`) : "never");
const percent = (share, digits) => `${(share * 100).toFixed(digits)} %`;
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
function metric(name, value) {
  const isShare = /acc|precision|recall|auc|top_?\d/i.test(name) && value >= 0 && value <= 1;
  return isShare && isNumber(value) ? percent(value, 2) : real(value);
}
function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}
function meanTime(histogram) {
  const count = histogram.buckets.reduce((sum, bucket) => sum + bucket, 0);
  return { count, us: count ? histogram.sum_us / count : null };
}

// Only a plain host and port becomes a link.
function taskLink(http) {
  if (typeof http !== "string" || !/^(https:\/\/)?([A-Za-z0-9.\-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$/.test(http)) return null;
  return http.startsWith("https://") ? `${http}/` : `http://${http}/`;
}
function linked(text, http) {
  const href = taskLink(http);
  if (!href) return make("span", "", text);
  const link = make("a", "", text);
  link.href = href;
  link.rel = "noreferrer";
  link.title = `${text} at ${http}`;
  return link;
}

// Makes the children of an element match the keys: one child for each key, in the given order.
function keyed(parent, keys, create, update) {
  const known = new Map();
  for (const child of [...parent.children]) known.set(child.dataset.key, child);
  keys.forEach((key, at) => {
    let child = known.get(key);
    if (child) known.delete(key);
    else { child = create(key); child.dataset.key = key; }
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null);
    update(child, key);
  });
  for (const child of known.values()) child.remove();
}

// ---- Header and summary

const PHASE_WORDS = { starting: "starting", training: "training", evaluating: "evaluating", failing: "failing", ended: "ended" };

// A job that has ended before its last step either was stopped or failed.
function howItEnded(job) {
  const done = job.step >= job.last_step && job.last_step > 0;
  if (job.failed) return `The job has failed at step ${whole(job.step)}: ${job.reason}`;
  if (job.reason) return `The job has ended at step ${whole(job.step)}: ${job.reason}`;
  return done ? `The job has ended: trained to its last step, ${whole(job.step)}.` : `The job has ended at step ${whole(job.step)} of ${whole(job.last_step)}.`;
}

function showSummary(job) {
  const about = job.job;
  say(id("name"), about.name || "pushpull");
  const phase = id("phase");
  const failed = job.phase === "ended" && job.failed;
  mark(phase, "data-phase", failed ? "failing" : job.phase);
  say(phase, failed ? "failed" : PHASE_WORDS[job.phase] || job.phase);
  const share = job.last_step > 0 ? job.step / job.last_step : 0;
  say(id("step"), whole(job.step));
  say(id("last-step"), whole(job.last_step));
  say(id("percent"), job.last_step > 0 ? percent(Math.floor(share * 1000) / 1000, 1) : "");
  const before = job.last_step > 0 ? Math.min(job.began, job.step) / job.last_step : 0;
  width(id("progress-before"), before);
  width(id("progress-done"), share - before);
  mark(id("progress"), "aria-valuenow", (share * 100).toFixed(1));
  say(id("loss"), real(job.loss));
  say(id("examples"), rate(job.examples_per_s));
  say(id("rate"), rate(job.steps_per_s));
  say(id("uptime"), countdown(job.up_ms));
  const left = job.last_step - job.step;
  const running = job.phase === "training" && job.steps_per_s > 0;
  say(id("eta"), job.phase === "ended" ? "–" : running ? countdown((left / job.steps_per_s) * 1000) : "–");

  const [at, metrics] = job.evaluation || [null, job.metrics || []];
  const first = metrics.find((one) => one.name !== "loss") || metrics[0];
  say(id("metric-name"), first ? first.name : "Evaluation");
  say(id("metric"), first ? metric(first.name, first.value) : "–");
  say(id("metric-at"), at !== null ? `at step ${whole(at)}` : first ? "in training" : "");

  const facts = [
    about.sync && `sync ${about.sync}`,
    about.optimizer,
    about.batch_size && `batch ${whole(about.batch_size)}${about.accumulate > 1 ? ` × ${whole(about.accumulate)}` : ""} per worker`,
    about.variables && `${whole(about.variables)} variables, ${bytes(about.variable_bytes)}`,
    job.began > 0 && `resumed from step ${whole(job.began)}`,
    job.rollbacks > 0 && `rolled back ${whole(job.rollbacks)} ${job.rollbacks > 1 ? "times" : "time"}`,
    job.spans_lost > 0 && `${whole(job.spans_lost)} spans dropped from the timeline`,
  ].filter(Boolean);
  keyed(id("facts"), facts.map((_, i) => String(i)), () => make("span"), (span, key) => say(span, facts[Number(key)]));

  document.title = job.last_step > 0
    ? `${job.phase === "training" ? percent(share, 0) : PHASE_WORDS[job.phase]} · ${about.name || "pushpull"}`
    : about.name || "pushpull";
  id("save").hidden = !job.checkpoints;
  id("wishes").hidden = !job.accepts_wishes || job.phase === "ended";
  id("insecure").hidden = !job.insecure;
}

// ---- Findings

const FINDING_WORDS = { slow_worker: "is slow", overloaded_shard: "is overloaded", silent_shard: "does not answer" };

function showFindings(job) {
  const box = id("findings");
  if (job.findings.length === 0) {
    const enough = job.phase === "training" && job.workers.some((worker) => worker.state === "training");
    keyed(box, enough ? ["calm"] : [], () => {
      const line = make("p", "calm");
      line.append(glyph("finished"), make("span", "", "No task holds up the others."));
      return line;
    }, () => {});
    return;
  }
  const found = new Map(job.findings.map((finding) => [`${finding.kind} ${finding.name}`, finding]));
  const shown = [...found.keys()].slice(0, FINDINGS_MAX);
  const more = found.size - shown.length;
  keyed(box, more > 0 ? [...shown, "more"] : shown, (key) => {
    if (key === "more") return make("p", "calm");
    const card = make("div", "finding");
    card.dataset.finding = found.get(key).kind;
    card.dataset.name = found.get(key).name;
    const body = make("div");
    const title = make("p");
    title.append(make("b", "", found.get(key).name), ` ${FINDING_WORDS[found.get(key).kind] || found.get(key).kind}`);
    body.append(title, make("p", "why"));
    card.append(glyph("warning"), body);
    return card;
  }, (card, key) => {
    if (key === "more") say(card, `and ${whole(more)} more, marked below`);
    else say(card.querySelector(".why"), found.get(key).reason);
  });
}

// ---- Cluster map

function tile(names) {
  const box = make("a", "tile");
  const head = make("div", "tile-head");
  head.append(glyph("absent"), make("span", "tile-name"), glyph("warning", "mark"), make("span", "state"));
  const facts = make("div", "tile-facts");
  for (const name of names) {
    const fact = make("span");
    fact.append(make("b"), ` ${name}`);
    facts.append(fact);
  }
  const meter = make("div", "meter");
  meter.append(make("i"));
  box.append(head, facts, meter);
  return box;
}

function fill(box, shown) {
  mark(box, "data-state", shown.state);
  mark(box.querySelector(".tile-head use"), "href", `#glyph-${shown.glyph}`);
  mark(box, "title", shown.title);
  mark(box, "aria-label", shown.title);
  mark(box, "href", shown.href);
  box.classList.toggle("found", shown.found);
  say(box.querySelector(".tile-name"), shown.name);
  say(box.querySelector(".state"), shown.state);
  box.querySelectorAll(".tile-facts b").forEach((fact, at) => say(fact, shown.facts[at]));
  width(box.querySelector(".meter i"), shown.share);
}

function taskRows(job, name) {
  return new Map(job.tasks.filter((row) => row.task.job === name).map((row) => [row.task.index, row]));
}

const SHARD_GLYPHS = { serving: "serving", ended: "finished", unreachable: "lost", leaving: "left", silent: "away", starting: "absent" };

function showCluster(job) {
  const found = new Set(job.findings.map((finding) => finding.name));
  const psTasks = taskRows(job, "ps");
  const single = job.shards.every((row) => row.shard.shard === 0);
  const shards = new Map(job.shards.map((row) => [shardName(row.shard), row]));
  const silent = [...psTasks.values()].filter((task) => !job.shards.some((row) => row.shard.ps === task.task.index));
  const waiting = new Map(silent.map((task) => [taskName(task.task), task]));
  const shardKeys = [...shards.keys(), ...waiting.keys()];
  const shardTiles = id("shard-tiles");
  const denseShards = shardKeys.length >= DENSE_FROM;
  shardTiles.classList.toggle("dense", denseShards);
  keyed(shardTiles, shardKeys, () => tile(["busy", "queued", "", ""]), (box, key) => {
    const row = shards.get(key);
    if (!row) {
      mark(box, "data-shard", key);
      fill(box, { state: "starting", glyph: "absent", name: key, title: `${key}: not reached yet`, href: "#shards", found: false, facts: ["–", "–", "", ""], share: 0 });
      return;
    }
    const at = row.state;
    const { ps, shard } = row.shard;
    mark(box, "data-shard", key);
    mark(box, "data-busy", row.busy >= BUSY_HIGH ? "high" : "usual");
    fill(box, {
      state: at,
      glyph: SHARD_GLYPHS[at],
      name: denseShards ? (single ? `${ps}` : `${ps}.${shard}`) : single ? `ps/${ps}` : `ps/${ps} · ${shard}`,
      title: `${key}: ${at}, version ${row.version}, ${percent(row.busy, 0)} busy, ${row.queue} queued, ${bytes(row.bytes)} in ${row.variables} variables`,
      href: `#row-${key}`,
      found: found.has(key),
      facts: [percent(row.busy, 0), whole(row.queue), `v${row.version}`, bytes(row.bytes)],
      share: row.busy,
    });
  });
  say(id("shards-count"), plural(job.shards.length, "shard") + ` on ${plural(psTasks.size, "task")}`);

  const workers = new Map(job.workers.map((row) => [String(row.worker), row]));
  const fastest = Math.max(0, ...job.workers.map((row) => row.steps_per_s));
  const denseWorkers = workers.size >= DENSE_FROM;
  const workerTiles = id("worker-tiles");
  workerTiles.classList.toggle("dense", denseWorkers);
  keyed(workerTiles, [...workers.keys()], () => tile(["step", "steps/s", "stale"]), (box, key) => {
    const row = workers.get(key);
    mark(box, "data-worker", key);
    fill(box, {
      state: row.state,
      glyph: row.state,
      name: denseWorkers ? key : `worker/${key}`,
      title: `worker/${key}: ${row.state}, step ${row.local_step}, ${rate(row.steps_per_s)} steps/s, staleness ${isNumber(row.staleness) ? row.staleness.toFixed(1) : "unknown"}`,
      href: `#row-worker-${key}`,
      found: found.has(`worker/${key}`),
      facts: [whole(row.local_step), rate(row.steps_per_s), isNumber(row.staleness) ? row.staleness.toFixed(1) : "–"],
      share: fastest > 0 ? row.steps_per_s / fastest : 0,
    });
  });
  const counts = new Map();
  for (const row of job.workers) counts.set(row.state, (counts.get(row.state) || 0) + 1);
  say(id("workers-count"), [...counts].map(([word, count]) => `${count} ${word}`).join(", "));

  const others = job.tasks.filter((row) => row.task.job !== "ps" && row.task.job !== "worker");
  keyed(id("others"), others.map((row) => taskName(row.task)), (key) => {
    const row = others.find((other) => taskName(other.task) === key);
    return linked(key, row.http);
  }, () => {});
}

const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// ---- Tables

// Each column has a heading, a value to sort by, and a function that fills a cell. Columns of text are aligned to the left.
class Table {
  constructor(element, columns, rowId) {
    Object.assign(this, { element, columns, rowId, by: 0, down: false });
    const head = make("thead");
    const row = make("tr");
    columns.forEach((column, at) => {
      const cell = make("th", column.text ? "text" : "");
      cell.scope = "col";
      const button = make("button", "", column.name);
      button.type = "button";
      if (column.about) button.title = column.about;
      button.addEventListener("click", () => this.sortBy(at));
      cell.append(button);
      row.append(cell);
    });
    head.append(row);
    this.body = make("tbody");
    element.append(head, this.body);
    this.rows = new Map();
    this.markSorted();
  }

  sortBy(at) {
    this.down = this.by === at ? !this.down : !this.columns[at].text && at > 0;
    this.by = at;
    this.markSorted();
    this.show(this.rows);
  }

  markSorted() {
    [...this.element.tHead.rows[0].cells].forEach((cell, at) => {
      if (at === this.by) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  }

  show(rows) {
    this.rows = rows;
    const value = this.columns[this.by].sort;
    const order = (a, b) => {
      const [left, right] = [value(a[1]), value(b[1])];
      if (typeof left === "string") return left.localeCompare(right) * (this.down ? -1 : 1);
      const [x, y] = [isNumber(left) ? left : -1, isNumber(right) ? right : -1];
      return (x - y) * (this.down ? -1 : 1);
    };
    const keys = [];
    for (const [key] of [...rows].sort(order)) {
      keys.push(key);
      if (this.detail && this.detail.has(key)) keys.push(`${key} detail`);
    }
    keyed(this.body, keys, (key) => {
      if (key.endsWith(" detail")) return this.makeDetail(key.slice(0, -7));
      const row = make("tr");
      row.id = this.rowId(key);
      for (const column of this.columns) row.append(make("td", column.text ? "text" : ""));
      return row;
    }, (row, key) => {
      if (key.endsWith(" detail")) return;
      const data = rows.get(key);
      row.classList.toggle("found", Boolean(data.found));
      this.columns.forEach((column, at) => column.fill(row.cells[at], data, key));
    });
  }
}

const plain = (get, format, tone) => (cell, row) => {
  const value = get(row);
  say(cell, (format || whole)(value));
  const className = tone && value > 0 ? tone : value === 0 ? "zero" : "";
  if (cell.className !== className) cell.className = className;
};
const column = (name, about, get, format, tone) => ({ name, about, sort: get, fill: plain(get, format, tone) });

function stateCell(cell, word, glyphName) {
  let span = cell.firstElementChild;
  if (!span) {
    span = make("span", "state");
    span.append(glyph(glyphName), make("span"));
    cell.append(span);
  }
  mark(span, "data-state", word);
  mark(span.querySelector("use"), "href", `#glyph-${glyphName}`);
  say(span.lastElementChild, word);
}

function nameCell(cell, name, http) {
  if (cell.dataset.http === String(http)) return;
  cell.dataset.http = String(http);
  cell.replaceChildren(linked(name, http));
}

const phaseClass = (name) => `p-${PHASES.includes(name) ? name : "other"}`;

// Shows the phases of a step as a bar, and names the slowest phase.
function phasesCell(cell, row) {
  const total = row.phases_us.reduce((sum, [, us]) => sum + us, 0);
  let box = cell.firstElementChild;
  if (!box) {
    box = make("div", "phases");
    box.append(make("div", "stack"), make("span"));
    cell.append(box);
  }
  const [stack, words] = box.children;
  const parts = new Map(row.phases_us);
  keyed(stack, [...parts.keys()], (name) => make("i", phaseClass(name)), (part, name) => width(part, total ? parts.get(name) / total : 0));
  if (!total) { say(words, "–"); return; }
  const [slowest, us] = row.phases_us.reduce((most, phase) => (phase[1] > most[1] ? phase : most));
  if (words.children.length === 0) { words.textContent = ""; words.append(make("span", "slowest"), make("span", "quiet")); }
  say(words.children[0], slowest);
  say(words.children[1], ` ${micros(us)} of ${micros(total)}`);
  mark(box, "title", row.phases_us.map(([name, took]) => `${name} ${micros(took)}`).join(", "));
}
const stepTime = (row) => row.phases_us.reduce((sum, [, us]) => sum + us, 0);
const oneDigit = (value) => (isNumber(value) ? value.toFixed(1) : "–");

const workersTable = new Table(id("workers"), [
  { name: "worker", sort: (row) => row.worker, fill: (cell, row) => nameCell(cell, `worker/${row.worker}`, row.http) },
  { name: "state", text: true, sort: (row) => row.state, fill: (cell, row) => stateCell(cell, row.state, row.state) },
  column("step", "Steps since the worker was started", (row) => row.local_step),
  column("steps/s", "Over the last seconds", (row) => row.steps_per_s, rate),
  column("examples/s", "Over the last seconds", (row) => row.examples_per_s, rate),
  column("loss", "Mean over the last steps", (row) => row.loss, real),
  column("staleness", "Mean over the pushes of the last seconds, in versions of their shard", (row) => row.staleness, oneDigit),
  { name: "step time", text: true, about: "Time of a step by phase; the slowest phase is named", sort: stepTime, fill: phasesCell },
  column("applied", "Pushes that were each applied as one update", (row) => row.verdicts.applied),
  column("held", "Pushes that were aggregated with others into one update", (row) => row.verdicts.held),
  column("stale", "Pushes that arrived after the update to which they should have contributed", (row) => row.verdicts.stale, whole, "warn"),
  column("stopped", "Pushes that arrived after the last update of the job", (row) => row.verdicts.stopped),
  column("skipped", "Steps whose gradients were dropped because they were not finite", (row) => row.skipped, whole, "bad"),
  column("reconnections", "Connections to ps tasks that were restored", (row) => row.reconnections, whole, "warn"),
  column("resends", "Requests to ps tasks that were sent again", (row) => row.resends, whole, "warn"),
  column("reported", "Time of the last report", (row) => row.reported_ms, ago),
], (key) => `row-worker-${key}`);

const shardsTable = new Table(id("shards"), [
  { name: "shard", sort: (row) => row.shard.ps * 1e6 + row.shard.shard, fill: (cell, row) => nameCell(cell, shardName(row.shard), row.http) },
  { name: "state", text: true, sort: (row) => row.state, fill: (cell, row) => stateCell(cell, row.state, SHARD_GLYPHS[row.state]) },
  column("version", "Updates applied", (row) => row.version),
  column("updates/s", "Over the last seconds", (row) => row.updates_per_s, rate),
  column("busy", "Fraction of the last seconds in which the shard handled messages", (row) => row.busy, (busy) => percent(busy, 0)),
  column("queued", "Messages that wait in the shard's mailbox", (row) => row.queue),
  column("wait", "Mean time that a message waited in the shard's mailbox", (row) => row.waited_us, micros),
  column("handling", "Mean time to handle a message", (row) => row.handling_us, micros),
  column("round trip", "Time from push to reply, measured by the workers", (row) => row.round_trip_us, micros),
  column("staleness", "Mean over all applied pushes, in versions", (row) => row.staleness, oneDigit),
  column("pushes", "Pushes received", (row) => row.pushes.received),
  column("applied", "Pushes that were each applied as one update", (row) => row.pushes.applied),
  column("held", "Pushes that were aggregated with others into one update", (row) => row.pushes.held),
  column("stale", "Pushes that arrived after the update to which they should have contributed", (row) => row.pushes.stale, whole, "warn"),
  column("duplicate", "Pushes that were received again, and answered with their first verdict", (row) => row.pushes.duplicate, whole, "warn"),
  column("refused", "Pushes that were refused, for example because they were not finite", (row) => row.pushes.refused, whole, "bad"),
  column("pulls", "Pulls answered", (row) => row.pulls),
  column("waiting", "Pulls that wait for their step to begin", (row) => row.waiting),
  column("variables", "Variables of which the shard has a slice", (row) => row.variables),
  column("bytes", "Bytes of the slices", (row) => row.bytes, bytes),
  column("other bytes", "Bytes of slots, averages and held gradients", (row) => row.more_bytes, bytes),
  { name: "placement", text: true, about: "Slices of the shard", sort: (row) => row.slices, fill: placementCell },
], (key) => `row-${key}`);
shardsTable.detail = state.open;

function placementCell(cell, row, key) {
  let button = cell.firstElementChild;
  if (!button) {
    button = make("button", "small", "variables");
    button.type = "button";
    button.dataset.placement = key;
    button.addEventListener("click", () => togglePlacement(key));
    cell.append(button);
  }
  mark(button, "aria-expanded", String(state.open.has(key)));
}

async function togglePlacement(key) {
  if (state.open.has(key)) state.open.delete(key);
  else {
    try {
      state.placement = await (await asked("placement")).json();
    } catch (error) {
      state.placement = null;
      state.placementError = String(error.message || error);
    }
    state.open.add(key);
  }
  shardsTable.show(shardsTable.rows);
}

shardsTable.makeDetail = (key) => {
  const row = make("tr", "detail");
  const cell = make("td");
  cell.colSpan = shardsTable.columns.length;
  row.append(cell);
  if (!state.placement) {
    cell.append(make("p", "", `Cannot read the placement: ${state.placementError}`));
    return row;
  }
  const slices = state.placement.filter((slice) => shardName(slice.shard) === key);
  if (slices.length === 0) {
    cell.append(make("p", "", "No variable lives here."));
    return row;
  }
  const table = make("table");
  table.dataset.placementOf = key;
  const head = make("tr");
  for (const name of ["variable", "shape", "rows", "bytes"]) head.append(make("th", "", name));
  table.append(head);
  for (const slice of slices) {
    const line = make("tr");
    const [first, count] = slice.rows;
    const rows = count > 0 ? `${first} to ${first + count - 1}` : "–";
    for (const text of [slice.variable, slice.shape || "scalar", rows, bytes(slice.bytes)]) line.append(make("td", "", text));
    table.append(line);
  }
  cell.append(table);
  return row;
};

function showTables(job) {
  const found = new Set(job.findings.map((finding) => finding.name));
  const [workerTasks, psTasks] = [taskRows(job, "worker"), taskRows(job, "ps")];
  workersTable.show(new Map(job.workers.map((row) => [
    String(row.worker),
    { ...row, http: (workerTasks.get(row.worker) || {}).http, found: found.has(`worker/${row.worker}`) },
  ])));
  shardsTable.show(new Map(job.shards.map((row) => [
    shardName(row.shard),
    { ...row, http: (psTasks.get(row.shard.ps) || {}).http, found: found.has(shardName(row.shard)) },
  ])));
}

function showCheckpoints(job) {
  const box = id("checkpoints");
  const made = job.checkpoints;
  if (!made) {
    if (box.dataset.of !== "none") box.replaceChildren(make("p", "", "This job makes no checkpoints."));
    box.dataset.of = "none";
    return;
  }
  if (box.dataset.of !== "some") box.replaceChildren();
  box.dataset.of = "some";
  const took = meanTime(made.took);
  const facts = [
    ["newest", made.last || "none yet"],
    ["of step", isNumber(made.last_step) ? whole(made.last_step) : "–"],
    ["made", isNumber(made.age_ms) ? ago(made.age_ms) : made.last ? "before this run" : "–"],
    ["saves", whole(made.saves)],
    ["failed", whole(made.failed), made.failed > 0 ? "bad" : ""],
    ["time per shard", took.count ? micros(took.us) : "–"],
    ["where", made.location],
  ];
  keyed(box, facts.flatMap(([name]) => [`name ${name}`, name]), (key) => {
    if (key.startsWith("name ")) return make("dt", "", key.slice(5));
    const value = make("dd");
    value.dataset.checkpoint = key;
    return value;
  }, (element, key) => {
    if (key.startsWith("name ")) return;
    const [, text, tone] = facts.find(([name]) => name === key);
    say(element, text);
    element.className = tone || "";
  });
}

// ---- Events of the job

// Older lines may arrive after newer ones, and a restarted chief sends its lines again.
function addLog(lines) {
  for (const line of lines) {
    const key = `${line.at_ms}|${line.task}|${line.text}`;
    if (state.logKeys.has(key)) continue;
    state.logKeys.add(key);
    state.log.push(line);
  }
  state.log.sort((one, other) => one.at_ms - other.at_ms);
  while (state.log.length > LOG_MAX) {
    const gone = state.log.shift();
    state.logKeys.delete(`${gone.at_ms}|${gone.task}|${gone.text}`);
  }
}

function showLog() {
  const box = id("log");
  if (state.log.length === 0) {
    box.replaceChildren(make("li", "none", "No events yet."));
    return;
  }
  box.querySelector(".none")?.remove();
  const lines = new Map(state.log.map((line) => [`${line.at_ms}|${line.task}|${line.text}`, line]));
  keyed(box, [...lines.keys()].reverse(), (key) => {
    const line = lines.get(key);
    const level = String(line.level).toLowerCase();
    const item = make("li");
    item.dataset.level = level;
    const time = make("time", "", clock(line.at_ms));
    time.dateTime = new Date(line.at_ms).toISOString();
    const who = make("span", "who", typeof line.task === "object" && line.task ? taskName(line.task) : line.task || "");
    item.append(time, make("span", "level", level), who, make("span", "what", line.text));
    return item;
  }, () => {});
}

// ---- Curves

function niceTicks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= raw) || power * 10;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return ticks;
}

// Returns at most two points for each pixel. If there are more, neighbouring points are replaced by their mean.
function thinned(points, columns) {
  if (points.length <= columns * 2) return points;
  const size = points.length / columns;
  const thin = [];
  for (let at = 0; at < columns; at += 1) {
    const part = points.slice(Math.floor(at * size), Math.floor((at + 1) * size));
    const mean = (of) => part.reduce((sum, point) => sum + point[of], 0) / part.length;
    thin.push([mean(0), mean(1)]);
  }
  return thin;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(+value.toPrecision(4));
}

class Chart {
  constructor(element, title, options) {
    Object.assign(this, { element, title, ...options });
    element.classList.toggle("stacked", Boolean(this.stacked));
    this.caption = make("figcaption");
    this.caption.append(make("b", "", title));
    this.svg = draw("svg", { role: "img", "aria-label": title });
    this.none = make("p", "none");
    this.tip = make("div", "tip");
    this.tip.hidden = true;
    element.append(this.caption, this.svg, this.none, this.tip);
    this.svg.addEventListener("pointermove", (event) => this.pointed(event));
    this.svg.addEventListener("pointerleave", () => hover(null));
    new ResizeObserver(() => this.show()).observe(this.svg);
  }

  pointed(event) {
    if (!this.scale) return;
    const box = this.svg.getBoundingClientRect();
    hover(this.scale.unX(event.clientX - box.left), this);
  }

  // Sets the series of the chart: {name, className, points: [[x, y], ...]}, with points in the order of x.
  set(series) {
    this.series = series.filter((one) => one.points.length > 0);
    this.show();
  }

  show() {
    const series = this.series || [];
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    this.svg.replaceChildren();
    this.element.dataset.points = String(series.reduce((sum, one) => sum + one.points.length, 0));
    // A metric may have any name, so keys have a prefix.
    keyed(this.caption, ["title", ...series.map((one) => `series ${one.name}`)], (key) => {
      if (key === "title") return make("b", "", this.title);
      const entry = make("span", "key");
      entry.append(make("i"), make("span"));
      return entry;
    }, (entry, key) => {
      if (key === "title") return;
      const one = series.find((other) => `series ${other.name}` === key);
      if (entry.firstElementChild.className !== one.className) entry.firstElementChild.className = one.className;
      say(entry.lastElementChild, `${one.name} ${this.format(one.points[one.points.length - 1][1], one.name)}`);
    });
    say(this.none, series.length ? "" : this.empty);
    this.scale = null;
    this.tip.hidden = true;
    if (!series.length || width < 40) return;

    const [left, right, top, bottom] = [38, 6, 8, 20];
    let [x0, x1] = [Infinity, -Infinity];
    for (const one of series) {
      x0 = Math.min(x0, one.points[0][0]);
      x1 = Math.max(x1, one.points[one.points.length - 1][0]);
    }
    if (x1 === x0) x1 = x0 + 1;
    const shown = series.map((one) => ({ ...one, points: thinned(one.points, width) }));
    const layers = this.stacked ? stack(shown) : shown.map((one) => ({ ...one, low: null }));
    let [y0, y1] = [Infinity, -Infinity];
    for (const one of layers) for (const [, y] of one.points) { y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
    if (this.fromZero || y0 >= 0 && y0 < y1 * 0.35) y0 = Math.min(0, y0);
    if (y1 === y0) y1 = y0 + (Math.abs(y0) || 1) * 0.1;
    y1 += (y1 - y0) * 0.06;
    if (this.most !== undefined && y1 > this.most && layers.every((one) => one.points.every(([, y]) => y <= this.most))) y1 = this.most;
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - top - bottom);
    this.scale = { x, unX: (px) => x0 + ((px - left) / (width - left - right)) * (x1 - x0), left, width };

    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (const tick of niceTicks(y0, y1, 3)) {
      const at = Math.round(y(tick)) + 0.5;
      this.svg.append(draw("line", { class: "gridline", x1: left, x2: width - right, y1: at, y2: at }));
      this.svg.append(draw("text", { x: left - 6, y: at + 3.5, "text-anchor": "end" }, this.tick ? this.tick(tick) : short(tick)));
    }
    const last = width - right;
    for (const tick of niceTicks(x0, x1, Math.max(2, width / 110))) {
      const at = x(tick);
      const text = state.axis === "step" ? short(tick) : shortDuration(tick);
      const anchor = at > last - 14 ? "end" : at < left + 14 ? "start" : "middle";
      this.svg.append(draw("text", { x: at, y: height - 4, "text-anchor": anchor }, text));
    }
    for (const one of layers) {
      const path = one.points.map(([px, py], at) => `${at ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("");
      if (one.low) {
        const back = [...one.low].reverse().map(([px, py]) => `L${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("");
        this.svg.append(draw("path", { class: `area ${one.className}`, d: `${path}${back}Z` }));
        continue;
      }
      this.svg.append(draw("path", { class: `line ${one.className}`, d: path, "fill-opacity": 0 }));
      if (one.dots || one.points.length === 1) {
        for (const [px, py] of one.points.slice(-200)) this.svg.append(draw("circle", { class: one.className, cx: x(px), cy: y(py), r: 2.3, "stroke-width": 0 }));
      }
    }
    this.point();
  }

  // Shows the values at the pointer.
  point() {
    this.svg.querySelector(".cursor")?.remove();
    if (state.hover === null || !this.scale) { this.tip.hidden = true; return; }
    const near = this.series.map((one) => {
      const at = nearest(one.points, state.hover);
      return { one, at: one.points[at] };
    });
    const best = near.reduce((most, other) => (Math.abs(other.at[0] - state.hover) < Math.abs(most.at[0] - state.hover) ? other : most));
    const px = this.scale.x(best.at[0]);
    this.svg.append(draw("line", { class: "cursor", x1: px, x2: px, y1: 8, y2: this.svg.clientHeight - 20 }));
    this.tip.replaceChildren(make("p", "quiet", state.axis === "step" ? `step ${whole(best.at[0])}` : duration(best.at[0])));
    for (const { one, at } of this.stacked ? [...near].reverse() : near) {
      const line = make("p");
      line.append(make("i", one.className), make("span", "", one.name), make("span", "", this.format(at[1], one.name)));
      this.tip.append(line);
    }
    this.tip.hidden = false;
    const room = this.element.clientWidth;
    const place = px + 34 + this.tip.offsetWidth > room ? px + 8 - this.tip.offsetWidth : px + 30;
    this.tip.style.left = `${Math.max(4, place)}px`;
  }
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}

// Stacks each series on the previous ones. All series have the same x values.
function stack(series) {
  let below = series[0].points.map(([x]) => [x, 0]);
  return series.map((one) => {
    const points = one.points.map(([x, y], at) => [x, y + (below[at] ? below[at][1] : 0)]);
    const layer = { ...one, points, low: below };
    below = points;
    return layer;
  });
}

const charts = {
  loss: new Chart(id("chart-loss"), "Loss", { format: real, empty: "No loss yet" }),
  metrics: new Chart(id("chart-metrics"), "Metrics", { format: (value, name) => metric(name, value), most: 1, empty: "No metric yet" }),
  examples: new Chart(id("chart-examples"), "Examples per second", { format: rate, fromZero: true, empty: "No examples yet" }),
  phases: new Chart(id("chart-phases"), "Time of a step, by phase", { format: micros, fromZero: true, stacked: true, tick: (us) => (us === 0 ? "0" : us >= 1000 ? `${short(us / 1000)} ms` : `${short(us)} µs`), empty: "No step yet" }),
};

function hover(x) {
  state.hover = x;
  for (const chart of Object.values(charts)) chart.point();
}

function addPoints(points, isAll) {
  if (isAll) state.points = [];
  let last = state.points.length ? state.points[state.points.length - 1].at_ms : -1;
  for (const point of points) {
    if (point.at_ms <= last) continue;
    state.points.push(point);
    last = point.at_ms;
  }
  // Drops every other point of the older half, except evaluations, so that the curve keeps its shape.
  if (state.points.length > POINTS_MAX) {
    const half = POINTS_MAX / 2;
    state.points = state.points.filter((point, at) => at >= half || at % 2 === 0 || point.evaluation.length > 0);
  }
}

function showCurves() {
  const at = state.axis === "step" ? (point) => point.step : (point) => point.at_ms;
  const line = (name, className, value) => ({ name, className, points: state.points.filter((point) => isNumber(value(point))).map((point) => [at(point), value(point)]) });
  const names = new Set();
  const trained = new Set();
  for (const point of state.points) {
    for (const one of point.evaluation) names.add(one.name);
    for (const one of point.metrics || []) trained.add(one.name);
  }
  const evaluated = (name, className) => ({ ...line(name, className, (point) => (point.evaluation.find((one) => one.name === name) || {}).value), dots: true });
  const loss = [line("training", "c0", (point) => point.loss)];
  if (names.has("loss")) loss.push({ ...evaluated("loss", "c2"), name: "evaluation" });
  charts.loss.set(loss);
  const inTraining = (name, className) => line(name, className, (point) => ((point.metrics || []).find((one) => one.name === name) || {}).value);
  const metrics = [...new Set([...names, ...trained])].filter((name) => name !== "loss").sort();
  // There are five colours. With two lines for each metric, there is room for two metrics.
  charts.metrics.set(trained.size === 0
    ? metrics.slice(0, 5).map((name, nth) => evaluated(name, `c${nth}`))
    : metrics.slice(0, 2).flatMap((name, nth) => [
      { ...inTraining(name, `c${nth}`), name: `${name}, training` },
      { ...evaluated(name, `c${nth + 2}`), name: `${name}, evaluation` },
    ]));
  charts.examples.set([line("all workers", "c0", (point) => point.examples_per_s)]);
  const timed = state.points.filter((point) => point.phases_us.length > 0);
  const seen = new Set(timed.flatMap((point) => point.phases_us.map(([name]) => name)));
  const order = [...PHASES.filter((name) => seen.has(name)), ...[...seen].filter((name) => !PHASES.includes(name))];
  charts.phases.set(order.map((name) => ({
    name,
    className: phaseClass(name),
    points: timed.map((point) => [at(point), (point.phases_us.find(([phase]) => phase === name) || [name, 0])[1]]),
  })));
}

for (const axis of ["step", "time"]) {
  id(`axis-${axis}`).addEventListener("click", () => {
    state.axis = axis;
    state.hover = null;
    for (const other of ["step", "time"]) mark(id(`axis-${other}`), "aria-pressed", String(other === axis));
    later("curves");
  });
}
id("log-warnings").addEventListener("change", (event) => id("log").classList.toggle("warnings", event.target.checked));

// ---- Drawing, at most once a frame

const due = new Set();
function later(...what) {
  if (due.size === 0) requestAnimationFrame(showDue);
  for (const one of what) due.add(one);
}
function showDue() {
  const now = [...due];
  due.clear();
  if (now.includes("job") && state.job) {
    showSummary(state.job);
    showFindings(state.job);
    showCluster(state.job);
    showTables(state.job);
    showCheckpoints(state.job);
  }
  if (now.includes("curves")) showCurves();
  if (now.includes("log")) showLog();
}

// ---- The connection

const connection = { source: null, last: null, state: "connecting", since: Date.now(), heard: Date.now(), tries: 0, retry: null };

function showConnection() {
  const now = Date.now();
  mark(document.body, "data-connection", connection.state);
  mark(id("connection"), "data-state", connection.state);
  const words = {
    connecting: () => "Connecting to the chief",
    live: () => (now - connection.heard < 3000 ? "Live" : `Last heard ${shortDuration(now - connection.heard)} ago`),
    broken: () => "Connection broken, trying again",
    ended: () => "Ended; the last state is shown",
  };
  say(id("connection-text"), words[connection.state]());
  for (const name of ["save", "stop"]) id(name).disabled = connection.state !== "live";
  const banner = id("banner");
  if (connection.state === "broken") {
    mark(banner, "data-kind", "broken");
    const seen = state.job ? "The page shows the last state before that." : "No data has arrived yet.";
    say(banner, `No connection to the chief since ${clock(connection.since)}. ${seen}`);
    banner.hidden = false;
  } else if (connection.state === "ended" && state.job) {
    mark(banner, "data-kind", state.job.failed ? "broken" : "ended");
    say(banner, howItEnded(state.job));
    banner.hidden = false;
  } else banner.hidden = true;
}

async function asked(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin" });
  // The session is over. The address of the page now shows the login form.
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer;
}

// Loads the curves and log lines from before this connection, and adds the points that have arrived since.
async function catchUp(source) {
  try {
    const [points, lines] = await Promise.all(["curves", "log"].map(async (path) => (await asked(path)).json()));
    if (connection.last !== source) return;
    const newPoints = state.points;
    addPoints(points, true);
    addPoints(newPoints, false);
    addLog(lines);
    later("curves", "log");
  } catch {
    // After an error only new events are shown. A broken connection is noticed by the event source.
  }
}

function heard() {
  connection.heard = Date.now();
  if (connection.state !== "live" && connection.state !== "ended") {
    connection.state = "live";
    connection.tries = 0;
    showConnection();
  }
}

function take(event, use) {
  heard();
  try {
    use(JSON.parse(event.data));
  } catch (error) {
    console.error(`cannot read an event '${event.type}': ${error}`);
  }
}

function ended(event) {
  try {
    const last = JSON.parse(event.data);
    if (last && last.job && last.tasks) state.job = last;
  } catch {
    // The end may arrive without a state. In that case the previous state was the last one.
  }
  if (state.job) state.job.phase = "ended";
  connection.source.close();
  connection.source = null;
  connection.state = "ended";
  later("job", "curves", "log");
  showConnection();
}

function connect() {
  const source = new EventSource("events");
  connection.source = source;
  connection.last = source;
  connection.heard = Date.now();
  source.addEventListener("open", () => { heard(); catchUp(source); });
  source.addEventListener("job", (event) => take(event, (job) => {
    // A shorter up time means that the chief was restarted, so the old curves and placement no longer apply.
    if (state.job && job.up_ms < state.job.up_ms) { state.points = []; state.placement = null; catchUp(source); }
    state.job = job;
    later("job");
  }));
  source.addEventListener("point", (event) => take(event, (point) => { addPoints([point], false); later("curves"); }));
  source.addEventListener("log", (event) => take(event, (line) => { addLog([line]); later("log"); }));
  source.addEventListener("end", ended);
  source.addEventListener("error", () => broken(source));
}

function broken(source) {
  if (connection.source !== source || !source) return;
  source.close();
  connection.source = null;
  // A chief whose job has ended sends nothing more.
  if (state.job && state.job.phase === "ended") {
    connection.state = "ended";
    showConnection();
    return;
  }
  if (connection.state !== "broken") {
    connection.state = "broken";
    connection.since = Date.now();
  }
  showConnection();
  asked("log").catch(() => {});
  const wait = RETRY_MS[Math.min(connection.tries, RETRY_MS.length - 1)];
  connection.tries += 1;
  connection.retry = setTimeout(connect, wait);
}

setInterval(() => {
  if (connection.source && Date.now() - connection.heard > SILENT_MS) broken(connection.source);
  showConnection();
}, 1000);

// ---- Requests to save or stop

const TOKEN_WHY = "A request to save or stop needs the chief's token. The browser keeps a cookie, not the token.";

// Shows a dialog, and returns whether the user continued.
function dialog(name, cancel) {
  const box = id(name);
  return new Promise((answer) => {
    const finish = (goOn) => () => { box.onclose = null; box.close(); answer(goOn); };
    box.querySelector("form").onsubmit = (event) => { event.preventDefault(); finish(true)(); };
    id(cancel).onclick = finish(false);
    // This event arrives after the dialog was closed. The dialog may be open again by then.
    box.onclose = () => { if (!box.open) answer(false); };
    box.showModal();
  });
}

// Asks for the token, and begins a session with it. The browser keeps only the cookie of the session. Returns
// whether the user continued.
async function logIn(why) {
  for (;;) {
    say(id("token-why"), why);
    id("token").value = "";
    const goOn = await dialog("token-dialog", "token-cancel");
    const given = id("token").value.trim();
    id("token").value = "";
    if (!goOn || !given) return false;
    const body = new URLSearchParams({ token: given });
    const answer = await fetch("login", { method: "POST", body, credentials: "same-origin", cache: "no-store", redirect: "manual" });
    if (answer.ok || answer.type === "opaqueredirect") return true;
    why = answer.status === 429
      ? "Too many wrong tokens were sent from this address. Try again later."
      : "The chief refused this token. Enter the token that the chief was started with.";
  }
}

async function wish(path, asking, done) {
  const said = id("wish-said");
  try {
    for (let isFirst = true; ; isFirst = false) {
      say(said, asking);
      const answer = await fetch(path, { method: "POST", credentials: "same-origin", cache: "no-store" });
      if (answer.status === 401 && isFirst) {
        say(said, "");
        if (!await logIn(TOKEN_WHY)) return;
        continue;
      }
      const refusal = answer.ok ? null : await answer.json().then((told) => told.error, () => null);
      say(said, answer.ok ? done : `Refused: ${refusal || answer.status}`);
      return;
    }
  } catch {
    say(said, "Cannot reach the chief.");
  }
}

id("save").addEventListener("click", () => wish("save", "Asking the chief to save", "The chief will save."));
id("stop").addEventListener("click", async () => {
  if (await dialog("stop-dialog", "stop-cancel")) await wish("stop", "Asking the chief to stop", "The chief will stop the job.");
});

later("curves", "log");
connect();
showConnection();
