/* Moves figures from the server into Plotly, and numbers into the header. Nothing is decided here: charts are made
   in Python (ui/charts), and every tab asks ui/live.py for what has changed. */
(function () {
  "use strict";

  const FAST = 200, CALM = 1000, HIDDEN = 5000, OFFLINE = 3000;
  const PLOT_CONFIG = { displaylogo: false, displayModeBar: "hover", responsive: false, scrollZoom: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  const charts = new Map();   // elem_id -> {box, figure, version, plotted}
  let header = null;          // {element, server, trigger}
  let notes = null;
  let timer = 0, polling = false, seenState = null, busyUntil = 0, drawing = 0;

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
    return { viewer: viewer(), theme: theme(), charts: asked };
  }

  async function poll() {
    if (polling || !header) return;
    polling = true;
    let wait = CALM;
    try {
      const answer = JSON.parse(await header.server.poll(question()));
      showHead(answer.head);
      const begun = performance.now();
      for (const [id, change] of Object.entries(answer.charts || {})) await update(charts.get(id), change);
      // Drawing gets at most a fifth of the time: on a small machine the model wants the same cores.
      drawing = 0.7 * drawing + 0.3 * (performance.now() - begun);
      const now = performance.now();
      if (answer.head.running || answer.head.waiting || answer.head.status === "loading") busyUntil = now + 2000;
      if (now < busyUntil || !window.Plotly) wait = Math.max(FAST, 4 * drawing);
    } catch (error) {
      setOffline();
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
    if (chart.plotted) await Plotly.react(chart.box, chart.figure.data, layout, PLOT_CONFIG);
    else { chart.plotted = true; await Plotly.newPlot(chart.box, chart.figure.data, layout, PLOT_CONFIG); }
  }

  function chart(element, id, title) {
    const box = element.querySelector(".mv-plot");
    const one = { box, title, figure: null, version: "", plotted: false };
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
    setText("model", loading && !head.total ? head.message + share : head.model || "no model");
    setText("badge", [head.badge, head.dtype].filter(Boolean).map((t) => " · " + t).join(""));
    for (const name of ["running", "waiting", "used", "total"]) setText(name, String(head[name]));
    setText("hits", head.hits == null ? "–" : head.hits + " %");
    const mood = head.total ? (head.running ? "busy" : "ready") : head.status;
    header.element.querySelector('[data-pill="model"]').dataset.mood = mood;
    if (notes) notes.querySelector(".mv-sample").hidden = !head.sample;
    if (seenState !== head.state) {
      seenState = head.state;
      header.trigger("apply");
    }
  }

  function setOffline() {
    setText("model", "no connection to the server");
    header.element.querySelector('[data-pill="model"]').dataset.mood = "error";
  }

  // The choice of a look is kept; Gradio, which follows the system and an address with __theme, has its say before.
  function setTheme(dark) {
    document.body.classList.toggle("dark", dark);
    try { localStorage.setItem("mv-theme", dark ? "dark" : "light"); } catch (error) { /* not allowed here */ }
    pollSoon();
  }

  function keptTheme() {
    try { return location.search.includes("__theme=") ? null : localStorage.getItem("mv-theme"); }
    catch (error) { return null; }
  }

  function startHeader(element, server, trigger) {
    header = { element, server, trigger };
    if (keptTheme()) document.body.classList.toggle("dark", keptTheme() === "dark");
    element.querySelector("[data-theme-toggle]").addEventListener("click", () =>
      setTheme(!document.body.classList.contains("dark")));
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

  // ---------------------------------------------------------------- folds and tooltips

  function whenThere(id, then) {
    const node = document.getElementById(id);
    if (node) then(node);
    else requestAnimationFrame(() => whenThere(id, then));
  }

  function fold(toggle, panel) {
    whenThere(toggle, (button) => {
      button.setAttribute("aria-controls", panel);
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => {
        const opened = button.getAttribute("aria-expanded") !== "true";
        button.setAttribute("aria-expanded", String(opened));
        if (opened) button.scrollIntoView({ block: "nearest" });
      });
    });
  }

  function tooltips(texts) {
    for (const [id, text] of Object.entries(texts)) whenThere(id, (node) => {
      node.title = text;
      const field = node.querySelector("input, textarea");
      if (field) field.setAttribute("aria-description", text);
    });
  }

  window.microVLLM = { fold, tooltips, header: startHeader, chart, notes: startNotes };
})();
