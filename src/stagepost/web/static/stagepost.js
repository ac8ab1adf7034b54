// Keeps pages up to date and under the keyboard. Everything is readable without it.
"use strict";

const FRAGMENT = { headers: { "X-Fragment": "1" }, credentials: "same-origin" };
const short = (id) => (id.length <= 16 ? id : `${id.slice(0, 8)}…${id.slice(-6)}`);
const pad = (number, digits) => String(number).padStart(digits, "0");
const TONES = { finalized: "final", accepted: "good", included: "good", queued: "open", sent: "open", likely_rejected: "warn" };

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function clock(ms) {
  if (ms === null || ms === undefined) return "–";
  const at = new Date(ms);
  const text = `${pad(at.getUTCHours(), 2)}:${pad(at.getUTCMinutes(), 2)}:${pad(at.getUTCSeconds(), 2)}.${pad(at.getUTCMilliseconds(), 3)}`;
  return element("time", { dateTime: at.toISOString(), title: `${at.toISOString().slice(0, 10)} ${text} UTC`, textContent: text });
}

function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (Math.abs(ms) < 1000) return `${Math.round(ms)} ms`;
  if (Math.abs(ms) < 10000) return `${(ms / 1000).toFixed(2)} s`;
  const whole = Math.round(ms / 1000);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)}m ${whole % 60}s`;
}

const idLink = (id) => element("a", { className: "id", href: `/trace/${id}`, title: id, textContent: short(id) });

// One stream, which goes on where it was: the browser sends the last id again, and the first one stands in the page.
function follow(url, since, handlers, onState = () => {}) {
  let last = since;
  let source = null;
  let isOver = false;
  async function open() {
    // EventSource cannot send a first Last-Event-ID, so the stream is read by hand.
    while (!isOver) {
      try {
        source = new AbortController();
        const headers = last ? { "Last-Event-ID": last } : {};
        const answer = await fetch(url, { headers, credentials: "same-origin", signal: source.signal });
        if (!answer.ok) throw new Error(String(answer.status));
        onState("on");
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          rest += value;
          let end;
          while ((end = rest.indexOf("\n\n")) >= 0) {
            take(rest.slice(0, end));
            rest = rest.slice(end + 2);
          }
        }
      } catch (error) {
        if (isOver) return;
      }
      onState("lost");
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  function take(block) {
    let name = "message";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("id: ")) last = line.slice(4);
    }
    if (data && handlers[name]) handlers[name](JSON.parse(data));
  }
  open();
  return () => { isOver = true; if (source) source.abort(); };
}

// Parts that are fetched again whenever something is new, at most once in `everyMs`; those with `data-every`, always.
function keepFresh(part, everyMs) {
  const isAlways = Boolean(part.dataset.every);
  let isDue = isAlways;
  let isBusy = false;
  async function refresh() {
    // What somebody types or is about to press stays where it is.
    if (isBusy || !isDue || document.hidden || part.contains(document.activeElement)) return;
    isBusy = true;
    isDue = isAlways;
    try {
      const answer = await fetch(part.dataset.refresh, FRAGMENT);
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
        if (fresh) {
          const open = [...part.querySelectorAll("tr.proof-row")].map((row) => row.dataset.of);
          part.replaceChildren(...fresh.childNodes);
          if (!fresh.dataset.stream && stop) stop();
          open.forEach((position) => { const row = part.querySelector(`tr[data-position="${position}"]`); if (row) toggleProof(row); });
        }
      }
    } finally {
      isBusy = false;
    }
  }
  setInterval(refresh, everyMs);
  document.addEventListener("visibilitychange", refresh);
  const news = () => { isDue = true; };
  const stop = part.dataset.stream ? follow(part.dataset.stream, part.dataset.eventId, { rows: news, dropped: news }) : null;
}

// The live page

function live(root) {
  const messages = document.querySelector("#live-messages tbody");
  const receipts = document.querySelector("#live-receipts tbody");
  const state = document.getElementById("live-state");
  const pause = document.getElementById("live-pause");
  const rowsMax = Number(root.dataset.rowsMax);
  let isPaused = false;
  let waiting = [];
  let dropped = 0;
  let counted = 0;
  const drop = (count) => { dropped += count; document.getElementById("live-dropped").textContent = dropped; };

  function messageRow(row) {
    let line = messages.querySelector(`tr[data-id="${row.message_id}"]`);
    if (!line) {
      line = element("tr", { className: "fresh" });
      line.dataset.id = row.message_id;
      messages.prepend(line);
    }
    const badge = element("span", { className: `badge ${TONES[row.verdict] || "bad"}`, textContent: row.words });
    line.replaceChildren(
      element("td", {}, idLink(row.message_id)), element("td", {}, badge), element("td", {}, clock(row.first_ms)),
      element("td", { className: "num", textContent: span(row.final_after_ms) }));
  }
  function receiptRow(row) {
    const line = element("tr", { className: "fresh" });
    line.dataset.position = row.position;
    const dot = element("span", { className: `dot ${row.colour}`, title: row.colour });
    const why = row.refused || row.error;
    const trouble = element("td", { className: row.refused ? "bad-text" : "dim", textContent: why, title: why });
    line.append(
      element("td", {}, clock(row.timestamp_ms)), element("td", { textContent: row.source }), element("td", {}, dot, row.kind || "no receipt"),
      element("td", {}, row.message_id ? idLink(row.message_id) : "–"), trouble);
    receipts.prepend(line);
  }
  function show(rows) {
    for (const row of rows) (row.type === "verdict" ? messageRow : receiptRow)(row);
    for (const table of [messages, receipts]) while (table.rows.length > rowsMax) table.lastElementChild.remove();
    document.querySelectorAll("#live .empty").forEach((one) => one.remove());
  }
  follow(root.dataset.stream, root.dataset.eventId, {
    rows(rows) {
      counted += rows.length;
      if (!isPaused) return show(rows);
      waiting.push(...rows);
      if (waiting.length > rowsMax) { drop(waiting.length - rowsMax); waiting = waiting.slice(-rowsMax); }
      pause.textContent = `Go on (${waiting.length})`;
    },
    dropped(news) { drop(news.rows); },
  }, (now) => { state.dataset.state = now; state.textContent = now === "on" ? "following" : "connection lost, trying again"; });
  setInterval(() => { document.getElementById("live-rate").textContent = counted; counted = 0; }, 1000);
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    if (!isPaused) { show(waiting); waiting = []; }
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
}

// Receipts open their proof in place

async function toggleProof(row) {
  const next = row.nextElementSibling;
  if (next && next.classList.contains("proof-row")) return next.remove();
  const link = row.querySelector("a.proof");
  const answer = await fetch(link.href, FRAGMENT);
  if (!answer.ok) { location.href = link.href; return; }
  const proof = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".proof-of");
  const cell = element("td", { colSpan: row.cells.length }, proof);
  const line = element("tr", { className: "proof-row" }, cell);
  line.dataset.of = row.dataset.position;
  row.after(line);
}

// Charts: always fresh arrays, for one that is changed in place is drawn as nothing. Their library comes after the text,
// and only where there is something to draw.

const MARKERS_MAX = 60; // points; with more, lines alone can be told apart
const HALF_HOUR_MS = 1800000;
const BAR_HEIGHT = 24, BARS_MARGIN = 80, BARS_HEIGHT_MIN = 160; // pixels

function loadCharts() {
  const holder = document.getElementById("chart-data");
  if (!holder || !JSON.parse(holder.textContent).length) return;
  document.head.append(element("script", { src: holder.dataset.library, onload: charts }));
}

function charts() {
  const holder = document.getElementById("chart-data");
  if (!holder || !window.Plotly) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const font = { family: style.getPropertyValue("--sans"), size: 12, color: colour("quiet") };
  for (const chart of JSON.parse(holder.textContent)) {
    const place = document.querySelector(`[data-chart="${chart.key}"]`);
    if (!place) continue;
    const lies = chart.kind === "across";
    const short = (name) => (name.length > 44 ? `${name.slice(0, 43)}…` : name);
    const points = Math.max(0, ...chart.series.map((series) => series.x.length));
    const moments = new Set(chart.is_time ? chart.series.flatMap((series) => series.x) : []);
    // One moment alone has no width: it gets an hour around it, and its bar a part of that.
    const only = moments.size === 1 ? [...moments][0] : null;
    const hasLegend = chart.series.length > 1;
    const traces = chart.series.map((series) => ({
      name: series.name, x: lies ? [...series.y] : chart.is_time ? series.x.map((ms) => new Date(ms).toISOString()) : [...series.x],
      y: lies ? series.x.map(short) : [...series.y], orientation: lies ? "h" : "v", hovertext: lies ? [...series.x] : undefined,
      type: chart.kind === "line" ? "scatter" : "bar", mode: points > MARKERS_MAX ? "lines" : "lines+markers", width: only !== null && chart.kind !== "line" ? HALF_HOUR_MS / 2 : undefined, marker: { color: colour(series.tone), size: 5 },
      line: { color: colour(series.tone), width: 2, dash: series.name.endsWith("p95") ? "dot" : "solid" },
    }));
    // Bars that lie have a line each, so that none of their names is left out.
    if (lies) place.style.height = `${Math.max(BARS_HEIGHT_MIN, BAR_HEIGHT * points + BARS_MARGIN)}px`;
    const most = Math.max(0, ...chart.series.flatMap((series) => series.y));
    // Counts have no halves.
    const values = { ticksuffix: chart.unit ? ` ${chart.unit}` : "", rangemode: "tozero", ...(chart.unit || chart.kind === "line" || most > 4 ? {} : { dtick: 1, ...(most ? {} : { range: [0, 1] }) }) };
    const axis = { gridcolor: colour("soft"), linecolor: colour("rule"), zerolinecolor: colour("rule"), automargin: true };
    const layout = {
      barmode: chart.is_stacked ? "stack" : "group", bargap: points > MARKERS_MAX ? 0.05 : lies || points > 4 ? 0.25 : 0.65, margin: { l: 44, r: 12, t: hasLegend ? 34 : 8, b: 36 }, font, paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)", xaxis: lies ? { ...axis, ...values, nticks: place.clientWidth < 420 ? 4 : 6, tickangle: 0 } : { ...axis, type: chart.is_time ? "date" : "category", ...(chart.is_time ? { nticks: place.clientWidth < 420 ? 3 : 6, tickangle: 0 } : {}),
        ...(only !== null ? { range: [only - HALF_HOUR_MS, only + HALF_HOUR_MS].map((ms) => new Date(ms).toISOString()) } : {}) },
      yaxis: lies ? { ...axis, type: "category", autorange: "reversed" } : { ...axis, ...values },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, showlegend: hasLegend,
    };
    window.Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true }).then(() => { place.dataset.drawn = String(traces.length); });
  }
}

// Keys

let selected = null;
function select(step) {
  const rows = [...document.querySelectorAll("table.rows > tbody > tr:not(.proof-row)")];
  if (!rows.length) return;
  const at = rows.indexOf(selected);
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))];
  if (selected) selected.removeAttribute("aria-selected");
  selected = next;
  selected.setAttribute("aria-selected", "true");
  selected.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const dialog = document.getElementById("keys");
  if (event.key === "/") { event.preventDefault(); document.querySelector(".search input").focus(); }
  else if (event.key === "j") select(1);
  else if (event.key === "k") select(-1);
  else if (event.key === "?") { if (dialog.open) dialog.close(); else dialog.showModal(); }
  else if (event.key === "p") { const pause = document.getElementById("live-pause"); if (pause) pause.click(); }
  else if (event.key === "Enter" && selected && !event.target.closest("a, button")) { const link = selected.querySelector("a"); if (link) link.click(); }
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("button.copy");
  const proof = event.target.closest("a.proof");
  if (copy) {
    try { await navigator.clipboard.writeText(copy.dataset.copy); copy.textContent = "copied"; } catch { copy.textContent = "not allowed"; }
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  } else if (proof && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    toggleProof(proof.closest("tr"));
  }
});

document.addEventListener("submit", (event) => {
  // Empty fields would only make the address longer.
  if (event.target.matches("form.filters")) for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});

document.addEventListener("DOMContentLoaded", () => {
  const root = document.getElementById("live");
  if (root) live(root);
  document.querySelectorAll("[data-refresh][data-stream], [data-refresh][data-every]").forEach((part) => keepFresh(part, part.id === "trace" ? 400 : 2000));
  loadCharts();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", charts);
});
