/* Moves figures from the server to the plots, and numbers into the header. Nothing is decided here: charts are made
   in Python (ui/charts), and every tab asks ui/feed/live.py for what has changed. */
(function () {
  "use strict";

  // Milliseconds between questions: while something happens, while nothing does, hidden, and without a connection.
  const FAST = 100, CALM = 500, HIDDEN = 5000, OFFLINE = 3000, PATIENCE = 15000, BUSY = 2000;
  const EARLY = 60;           // how long before there can be something new the next question is sent: it waits there
  const GLIMPSE = 40;         // pixels

  const charts = new Map();   // elem_id -> plot (plots.js)
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
      for (const [id, change] of changed) if (charts.has(id)) await charts.get(id).update(change);
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
    for (const one of charts.values()) one.forgetZoom();
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

  function chart(element, id, title) {
    charts.set(id, window.microVLLM.plot(element.querySelector(".mv-plot"), id, title, pollSoon));
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
