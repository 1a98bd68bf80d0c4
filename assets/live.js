/* Moves figures from the server into Plotly, and numbers into the header. Nothing is decided here: charts are made
   in Python (ui/charts), and every tab asks ui/feed/live.py for what has changed. */
(function () {
  "use strict";

  // Milliseconds between questions: while something happens, while nothing does, hidden, and without a connection.
  const FAST = 100, CALM = 500, HIDDEN = 5000, OFFLINE = 3000, PATIENCE = 15000, BUSY = 2000;
  const EARLY = 60;           // how long before there can be something new the next question is sent: it waits there
  const GLIMPSE = 40;         // pixels
  const SIDES = ["clientWidth", "clientHeight"], MEASURED = Object.getOwnPropertyDescriptors(Element.prototype);

  const charts = new Map();   // elem_id -> {box, figure, version, plotted, zoom}
  const panes = new Map();    // name -> {ask, show}
  const parts = [];           // {ask, show}: the clock, the focus
  let header = null;          // {element, trigger}
  let notes = null;
  let timer = 0, polling = false, again = false, isEarly = false, seenState = null, story = null, busyUntil = 0;
  let drawing = 0, quickest = Infinity, slowness = 1;   // milliseconds a frame; a chart, at best; how much longer now
  let introduced = 0;

  // ---------------------------------------------------------------- polling

  function viewer() {
    const node = document.querySelector("#viewer .prose, #viewer");
    return node ? node.textContent.trim() : "";
  }

  function theme() {
    return document.body.classList.contains("dark") ? "dark" : "light";
  }

  // Only what somebody can see is made and drawn; a glimpse of a chart is not worth it.
  function inView(box) {
    const r = box.getBoundingClientRect();
    return r.width > 0 && r.height > 0 && r.bottom > GLIMPSE && r.top < innerHeight - GLIMPSE;
  }

  function question() {
    const asked = { viewer: viewer(), theme: theme(), early: isEarly, charts: {}, panes: {} };
    for (const [id, chart] of charts) {
      if (!window.Plotly || document.hidden || !inView(chart.box)) continue;
      asked.charts[id] = { w: chart.width, h: chart.height, version: chart.version };
    }
    for (const [name, one] of panes) {
      const wanted = one.ask();
      if (wanted != null) asked.panes[name] = wanted;
    }
    for (const part of parts) Object.assign(asked, part.ask());
    return asked;
  }

  async function ask(wanted) {
    const reply = await fetch("live", { method: "POST", body: JSON.stringify(wanted),
      headers: { "Content-Type": "application/json" }, signal: AbortSignal.timeout(PATIENCE) });
    if (!reply.ok) throw new Error("status " + reply.status);
    return reply.json();
  }

  async function poll() {
    if (polling || !header) { again = true; return; }
    polling = true;
    let wait = CALM;
    try {
      const asked = performance.now(), wanted = question();
      again = isEarly = false;
      const answer = await ask(wanted), answered = performance.now();
      await show(answer, wanted);
      const now = performance.now();
      if (answer.head.running || answer.head.waiting || answer.head.status === "loading") busyUntil = now + BUSY;
      if (now < busyUntil || !window.Plotly) {
        wait = Math.max(asked + FAST - now, answered + (answer.next || 0) - EARLY - now, rest());
        isEarly = !again;
      }
      if (answer.again) wait = answer.again;
    } catch (error) {
      await setOffline();
      wait = OFFLINE;
    }
    polling = false;
    clearTimeout(timer);
    timer = setTimeout(poll, again ? 0 : document.hidden ? HIDDEN : wait);
  }

  async function show(answer, wanted) {
    showHead(answer.head);
    for (const what of answer.broken || []) console.error("the server could not make " + what);
    if (answer.again) return;
    const clock = answer.clock;
    if (clock && story !== clock.story) forgetStory(clock.story);
    for (const part of parts) part.show(answer, wanted);
    for (const [name, told] of Object.entries(answer.panes || {})) if (told != null) panes.get(name).show(told);
    const changed = Object.entries(answer.charts || {});
    if (changed.length) {
      const begun = performance.now();
      for (const [id, change] of changed) await update(charts.get(id), change);
      noteDrawing(performance.now() - begun, changed.length);
    }
    if (clock) window.dispatchEvent(new CustomEvent("mv:drawn", { detail: { step: clock.step, charts: changed.length } }));
  }

  function noteDrawing(took, count) {
    drawing = 0.7 * drawing + 0.3 * took;
    quickest = Math.min(took / count, 1.02 * quickest);
    slowness = 0.7 * slowness + 0.3 * took / count / quickest;
  }

  // Drawing takes as long as ever: nobody else wants this core. It takes longer: perhaps the engine does, on a small
  // machine where both run, and then it comes first.
  function rest() { return (slowness < 4 ? 0.25 : 1) * drawing; }

  // Other steps, other blocks: of another engine, or of a file. What was zoomed into is not there any more.
  function forgetStory(name) {
    story = name;
    for (const one of charts.values()) one.zoom = {};
  }

  function pollSoon() {
    busyUntil = performance.now() + BUSY;
    clearTimeout(timer);
    isEarly = false;  // whoever asks now wants to know now
    if (polling) again = true;
    else timer = setTimeout(poll, 0);
  }

  // Something goes on here: ask often for a while, but not without the pauses that others need.
  function stayBusy() { busyUntil = performance.now() + BUSY; }

  // Whoever does something wants to see what comes of it.
  function awaken() {
    const now = performance.now();
    if (now > busyUntil && !polling) pollSoon();
    else busyUntil = now + BUSY;
  }

  // ---------------------------------------------------------------- charts

  async function update(chart, change) {
    if (!chart) return;
    if (change.full) chart.figure = change.full;
    else for (const [path, value, start, keep] of change.patch) put(chart.figure, path, value, start, keep);
    chart.version = change.version;
    await draw(chart);
  }

  // With `start` and `keep` a window has moved on: so much of the list stays, and `value` follows it.
  function put(target, path, value, start, keep) {
    let at = target;
    for (let i = 0; i < path.length - 1; i++) at = at[path[i]];
    const last = path[path.length - 1];
    at[last] = keep === undefined ? value : at[last].slice(start, start + keep).concat(value);
  }

  async function draw(chart) {
    // Hidden since it was asked for: the figure is kept, and drawn in full size when its box has one again.
    if (!chart.figure || !chart.width || !chart.height) return;
    // The arrays are changed in place: datarevision is how Plotly is told.
    const layout = Object.assign({}, chart.figure.layout, { datarevision: chart.version,
      width: chart.width, height: chart.height });
    // Plotly writes into the axes that it is given; ours stay as the server knows them.
    for (const [name, axis] of Object.entries(layout))
      if (/^[xy]axis\d*$/.test(name)) layout[name] = Object.assign({}, axis, chart.zoom[name] && { range: chart.zoom[name].slice() });
    const traces = marked(chart.figure.data);
    if (chart.plotted) return Plotly.react(chart.box, traces, layout, config(chart));
    chart.plotted = true;
    await Plotly.newPlot(chart.box, traces, layout, config(chart));
    chart.box.on("plotly_relayout", (change) => zoomed(chart, change));
    chart.box.on("plotly_doubleclick", () => unzoom(chart));
    if (window.microVLLM.focusable) window.microVLLM.focusable(chart.box);
  }

  // Many traces are empty in most steps, and Plotly goes through all that it does for the others. One stays where it
  // is the only one on its axes: without it they would not be drawn.
  function marked(traces) {
    const axes = (trace) => (trace.xaxis || "x") + (trace.yaxis || "y");
    const isFull = (trace) => (trace.z || trace.x).length > 0;
    const drawn = new Set(traces.filter(isFull).map(axes));
    return traces.filter((trace) => isFull(trace) || (!drawn.has(axes(trace)) && drawn.add(axes(trace))));
  }

  function config(chart) {
    chart.config = chart.config || { displaylogo: false, displayModeBar: "hover", responsive: false, scrollZoom: false,
      doubleClick: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d",
        "sendChartToCloud"],  // what is on this page stays here
      modeBarButtonsToAdd: [{ name: "whole", title: "Show everything again (or double-click)", icon: Plotly.Icons.home,
        click: () => unzoom(chart) }] };
    return chart.config;
  }

  // uirevision keeps a zoom only until the range of an axis moves on, which live axes always do. So zooms are kept here.
  function zoomed(chart, change) {
    for (const [key, value] of Object.entries(change)) {
      const [, axis, end] = /^([xy]axis\d*)\.range\[([01])\]$/.exec(key) || [];
      const range = axis && (chart.zoom[axis] || (chart.figure.layout[axis] || {}).range);
      if (range) (chart.zoom[axis] = chart.zoom[axis] || range.slice())[end] = value;
    }
  }

  function unzoom(chart) {
    chart.zoom = {};
    draw(chart);
  }

  function chart(element, id, title) {
    const box = element.querySelector(".mv-plot");
    // Its size is noted when it changes: to ask for it between two drawings makes the browser lay out the whole page.
    const one = { box, title, figure: null, version: "", plotted: false, zoom: {}, width: 0, height: 0 };
    charts.set(id, one);
    new ResizeObserver(() => {
      [one.width, one.height] = SIDES.map((side) => MEASURED[side].get.call(box));
      if (!one.width || !one.height) return;
      if (window.Plotly) draw(one);
      pollSoon();  // cells and labels are laid out for a size
    }).observe(box);
    // Plotly asks for it before each drawing, too: a fifth of the time that all charts took.
    SIDES.forEach((side, i) => Object.defineProperty(box, side, { get: () => [one.width, one.height][i] }));
    addTab(element, id, title);
    pollSoon();
  }

  // ---------------------------------------------------------------- header

  function setText(name, text) {
    const node = header.element.querySelector('[data-head="' + name + '"]');
    if (node && node.textContent !== text) node.textContent = text;
  }

  function setMood(mood) {
    header.element.querySelector('[data-pill="model"]').dataset.mood = mood;
  }

  function showHead(head) {
    const loading = head.status === "loading";
    const share = head.progress == null ? "" : " " + Math.round(head.progress * 100) + " %";
    const words = loading ? head.message + share : "no model is loaded";
    setText("model", head.closing ? "the server is shutting down" : head.total ? head.model : words);
    setText("badge", head.closing ? "" : [head.badge, head.dtype].filter(Boolean).map((t) => " · " + t).join(""));
    for (const name of ["running", "waiting", "used", "total"]) setText(name, head[name].toLocaleString("en"));
    setText("hits", head.hits == null ? "–" : head.hits + " %");
    setText("paused", head.paused ? " · engine paused" : "");
    setMood(head.closing ? "error" : head.paused ? "paused" : head.total ? (head.running ? "busy" : "ready") : head.status);
    if (notes) notes.querySelector(".mv-sample").hidden = !head.sample;
    tellGradio(head);
  }

  // Components that show the state are asked for through Gradio, but not while the server ends: Gradio would take the
  // broken answer for a lost connection, and load the page anew when the next server is up, with the chat gone.
  function tellGradio(head) {
    if (head.closing) return;
    const isStranger = !head.known && viewer() !== "" && performance.now() - introduced > OFFLINE;
    if (seenState === head.state && !isStranger) return;
    seenState = head.state;
    if (isStranger) introduced = performance.now();  // the server was restarted, and knows this tab by another name
    header.trigger("apply");
  }

  async function setOffline() {
    // A server that answers but not to this page is another one than the page came from.
    const changed = await fetch("health").then((answer) => answer.ok, () => false);
    setText("model", changed ? "the server has changed: reload this page" : "no connection to the server");
    setText("badge", "");
    setMood("error");
  }

  function startHeader(element, trigger) {
    header = { element, trigger };
    window.microVLLM.look(element.querySelector("[data-theme-toggle]"), pollSoon);
    window.microVLLM.rooms(element);
    window.microVLLM.followChat();
    window.microVLLM.keepDrafts();
    document.addEventListener("visibilitychange", () => { if (!document.hidden) pollSoon(); });
    document.addEventListener("scroll", awaken, { capture: true, passive: true });
    for (const kind of ["pointerup", "keyup"]) document.addEventListener(kind, awaken, { passive: true });
    pollSoon();
  }

  // ---------------------------------------------------------------- phones: charts as tabs

  function startNotes(element) {
    notes = element;
    for (const [id, one] of charts) addTab(one.box.closest(".mv-chart"), id, one.title);
  }

  function addTab(element, id, title) {
    const bar = notes && notes.querySelector(".mv-tabs");
    if (!bar || bar.querySelector('[data-chart="' + id + '"]')) return;
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.chart = id;
    button.textContent = title;
    button.addEventListener("click", () => select(id));
    bar.append(button);
    if (bar.children.length === 1) select(id);
    else select(bar.querySelector('[aria-pressed="true"]').dataset.chart);
  }

  function select(id) {
    for (const button of notes.querySelectorAll(".mv-tabs button"))
      button.setAttribute("aria-pressed", String(button.dataset.chart === id));
    for (const [other, one] of charts)
      one.box.closest(".mv-card").classList.toggle("mv-off", other !== id);
    pollSoon();
  }

  // ---------------------------------------------------------------- what others add to the question

  // What a tab asks for besides charts: `ask()` -> JSON or null, `show(answer)` when the server has something new.
  function pane(name, ask, show) {
    panes.set(name, { ask, show });
    pollSoon();
  }

  // For all charts at once: `ask()` -> members of the question, `show(answer, question)` is called before the
  // charts are drawn.
  function part(ask, show) {
    parts.push({ ask, show });
    pollSoon();
  }

  // What a chart holds, for tests and for whoever wants to look under the hood.
  function figure(id) {
    const one = charts.get(id);
    return one && one.figure ? { figure: one.figure, width: one.width, height: one.height } : null;
  }

  window.microVLLM = Object.assign(window.microVLLM || {},
    { header: startHeader, chart, notes: startNotes, pane, part, pollSoon, stayBusy, viewer, figure });
})();
