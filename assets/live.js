/* Moves figures from the server into Plotly, and numbers into the header. Nothing is decided here: charts are made
   in Python (ui/charts), and every tab asks ui/live.py for what has changed. */
(function () {
  "use strict";

  const FAST = 200, CALM = 1000, HIDDEN = 5000, OFFLINE = 3000;

  const charts = new Map();   // elem_id -> {box, figure, version, plotted}
  const panes = new Map();    // name -> {ask, show}
  let header = null;          // {element, server, trigger}
  let notes = null;
  let timer = 0, polling = false, seenState = null, story = null, busyUntil = 0, drawing = 0;

  // ---------------------------------------------------------------- polling

  function viewer() {
    const node = document.querySelector("#viewer .prose, #viewer");
    return node ? node.textContent.trim() : "";
  }

  function theme() {
    return document.body.classList.contains("dark") ? "dark" : "light";
  }

  function inView(box) {
    const r = box.getBoundingClientRect();
    return r.width > 0 && r.height > 0 && r.bottom > -100 && r.top < innerHeight + 100;
  }

  function question() {
    const asked = {};
    for (const [id, chart] of charts) {
      if (!window.Plotly || !inView(chart.box)) continue;
      asked[id] = { w: chart.box.clientWidth, h: chart.box.clientHeight, version: chart.version };
    }
    const panesAsked = {};
    for (const [name, one] of panes) {
      const wanted = one.ask();
      if (wanted != null) panesAsked[name] = wanted;
    }
    return { viewer: viewer(), theme: theme(), charts: asked, panes: panesAsked };
  }

  async function poll() {
    if (polling || !header) return;
    polling = true;
    let wait = CALM;
    try {
      const answer = JSON.parse(await header.server.poll(question()));
      showHead(answer.head);
      for (const [name, told] of Object.entries(answer.panes || {})) if (told != null) panes.get(name).show(told);
      const begun = performance.now();
      for (const [id, change] of Object.entries(answer.charts || {})) await update(charts.get(id), change);
      // Drawing gets at most a fifth of the time: on a small machine the model wants the same cores.
      drawing = 0.7 * drawing + 0.3 * (performance.now() - begun);
      const now = performance.now();
      if (answer.head.running || answer.head.waiting || answer.head.status === "loading") busyUntil = now + 2000;
      if (now < busyUntil || !window.Plotly) wait = Math.max(FAST, 4 * drawing);
    } catch (error) {
      await setOffline();
      wait = OFFLINE;
    }
    polling = false;
    clearTimeout(timer);
    timer = setTimeout(poll, document.hidden ? HIDDEN : wait);
  }

  function pollSoon() {
    busyUntil = performance.now() + 2000;
    clearTimeout(timer);
    timer = setTimeout(poll, 0);
  }

  // ---------------------------------------------------------------- charts

  async function update(chart, change) {
    if (!chart) return;
    if (change.full) chart.figure = change.full;
    else for (const [path, value] of change.patch) put(chart.figure, path, value);
    chart.version = change.version;
    await draw(chart);
  }

  function put(target, path, value) {
    let at = target;
    for (let i = 0; i < path.length - 1; i++) at = at[path[i]];
    at[path[path.length - 1]] = value;
  }

  async function draw(chart) {
    // The arrays are changed in place: datarevision is how Plotly is told.
    const layout = Object.assign({}, chart.figure.layout, { datarevision: chart.version,
      width: chart.box.clientWidth, height: chart.box.clientHeight });
    for (const [axis, range] of Object.entries(chart.zoom))
      layout[axis] = Object.assign({}, layout[axis], { range: range.slice() });
    if (chart.plotted) return Plotly.react(chart.box, chart.figure.data, layout, config(chart));
    chart.plotted = true;
    await Plotly.newPlot(chart.box, chart.figure.data, layout, config(chart));
    chart.box.on("plotly_relayout", (change) => zoomed(chart, change));
    chart.box.on("plotly_doubleclick", () => unzoom(chart));
  }

  function config(chart) {
    chart.config = chart.config || { displaylogo: false, displayModeBar: "hover", responsive: false, scrollZoom: false,
      doubleClick: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"],
      modeBarButtonsToAdd: [{ name: "whole", title: "Show everything again (or double-click)", icon: Plotly.Icons.home,
        click: () => unzoom(chart) }] };
    return chart.config;
  }

  // uirevision keeps a zoom only until the range of an axis moves on, which live axes always do. So zooms are kept here.
  function zoomed(chart, change) {
    for (const [key, value] of Object.entries(change)) {
      const [, axis, end] = /^([xy]axis\d*)\.range\[([01])\]$/.exec(key) || [];
      if (axis) (chart.zoom[axis] = chart.zoom[axis] || chart.figure.layout[axis].range.slice())[end] = value;
    }
  }

  function unzoom(chart) {
    chart.zoom = {};
    draw(chart);
  }

  function chart(element, id, title) {
    const box = element.querySelector(".mv-plot");
    const one = { box, title, figure: null, version: "", plotted: false, zoom: {} };
    charts.set(id, one);
    new ResizeObserver(() => {
      if (!box.clientWidth || !box.clientHeight) return;
      if (one.plotted) Plotly.relayout(box, { width: box.clientWidth, height: box.clientHeight });
      pollSoon();  // cells and labels are laid out for a size
    }).observe(box);
    addTab(element, id, title);
    pollSoon();
  }

  // ---------------------------------------------------------------- header

  function setText(name, text) {
    const node = header.element.querySelector('[data-head="' + name + '"]');
    if (node && node.textContent !== text) node.textContent = text;
  }

  function showHead(head) {
    const loading = head.status === "loading";
    const share = head.progress == null ? "" : " " + Math.round(head.progress * 100) + " %";
    setText("model", head.total ? head.model : loading ? head.message + share : "no model is loaded");
    setText("badge", [head.badge, head.dtype].filter(Boolean).map((t) => " · " + t).join(""));
    for (const name of ["running", "waiting", "used", "total"]) setText(name, String(head[name]));
    setText("hits", head.hits == null ? "–" : head.hits + " %");
    const mood = head.total ? (head.running ? "busy" : "ready") : head.status;
    header.element.querySelector('[data-pill="model"]').dataset.mood = mood;
    if (notes) notes.querySelector(".mv-sample").hidden = !head.sample;
    if (story !== head.model + head.sample) for (const one of charts.values()) one.zoom = {};  // other steps, other blocks
    story = head.model + head.sample;
    if (seenState !== head.state) {
      seenState = head.state;
      header.trigger("apply");
    }
  }

  async function setOffline() {
    // A server that answers but not to this page is another one than the page came from.
    const changed = await fetch("health").then((answer) => answer.ok, () => false);
    setText("model", changed ? "the server has changed: reload this page" : "no connection to the server");
    header.element.querySelector('[data-pill="model"]').dataset.mood = "error";
  }

  function startHeader(element, server, trigger) {
    header = { element, server, trigger };
    window.microVLLM.look(element.querySelector("[data-theme-toggle]"), pollSoon);
    window.microVLLM.rooms(element);
    window.microVLLM.follow("chat");
    document.addEventListener("visibilitychange", () => { if (!document.hidden) pollSoon(); });
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

  // What a tab asks for besides charts: `ask()` -> JSON or null, `show(answer)` when the server has something new.
  function pane(name, ask, show) {
    panes.set(name, { ask, show });
    pollSoon();
  }

  window.microVLLM = Object.assign(window.microVLLM || {},
    { header: startHeader, chart, notes: startNotes, pane, pollSoon });
})();
