/* The event table: rows come worded from ui/events/table.py; here they are put on top, and filters are asked for. */
(function () {
  "use strict";

  const MAX_ROWS = 200;

  let find = null, findAll = null;
  const chosen = new Set();   // kinds; none: all
  let request = "";           // "": all
  let byFocus = false;        // the page's focus chose the request
  let version = "", letters = "";

  function node(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text != null) made.textContent = text;
    return made;
  }

  // ---------------------------------------------------------------- question and answer

  function ask() {
    if (!find || document.hidden) return null;
    const box = find(".mv-card").getBoundingClientRect();
    if (!box.width || box.bottom < -100 || box.top > innerHeight + 100) return null;
    return { kinds: [...chosen], request: request || null, version };
  }

  function show(answer) {
    if (!find) return;
    version = answer.version;
    if (answer.requests) showRequests(answer.requests);
    const body = find("tbody"), scroll = find(".scroll");
    const line = answer.add && scroll.scrollTop > 0 ? lineBeingRead(scroll, body) : null;
    const made = document.createDocumentFragment();
    for (const row of answer.rows) made.append(rowOf(row));
    if (answer.add) body.prepend(made);
    else body.replaceChildren(made);
    while (body.rows.length > MAX_ROWS) body.lastElementChild.remove();
    if (line && line.row.isConnected) scroll.scrollTop += line.row.getBoundingClientRect().top - line.top;
    count(answer.more || body.rows.length >= MAX_ROWS);
  }

  // Who reads further down keeps their line, whatever comes above it.
  function lineBeingRead(scroll, body) {
    const edge = scroll.getBoundingClientRect().top;
    for (const row of body.rows) {
      const box = row.getBoundingClientRect();
      if (box.bottom > edge + 20) return { row, top: box.top };
    }
    return null;
  }

  function count(isCut) {
    const number = find("tbody").rows.length;
    const words = isCut ? "newest " + number + " events" : number === 1 ? "1 event" : number + " events";
    if (find(".count").textContent !== words) find(".count").textContent = words;
    const none = find(".none");
    none.hidden = number > 0;
    none.textContent = chosen.size || request ? "No such event up to this step." : "Nothing has happened yet.";
  }

  function rowOf([seq, step, seconds, kind, requests, more, words]) {
    const row = node("tr");
    const go = node("button", "num", String(step));
    go.type = "button";
    go.dataset.step = step;
    go.setAttribute("aria-label", "look at step " + step);
    const when = node("td", "num");
    when.append(go);
    const who = node("td", "who");
    for (const [id, label, slot] of requests) who.append(chip(id, label, slot));
    if (more) who.append(node("span", "more", "+" + more));
    row.append(when, node("td", "num", seconds), node("td", "kind", kind), who, node("td", "what", words));
    row.dataset.seq = seq;
    return row;
  }

  function chip(id, label, slot) {
    const made = node("button", "chip" + (slot == null ? "" : " req-" + slot), label);
    made.type = "button";
    made.dataset.request = id;
    made.title = "follow request " + label;
    made.setAttribute("aria-label", "follow request " + label);
    return made;
  }

  // ---------------------------------------------------------------- filters

  function showRequests(requests) {
    const text = JSON.stringify(requests);
    if (text === letters) return;
    letters = text;
    const select = find("#event-request");
    const options = [new Option("all", "")];
    for (const [id, label] of requests) options.push(new Option(label, id));
    if (request && !requests.some(([id]) => id === request)) options.push(new Option("an earlier one", request));
    select.replaceChildren(...options);
    select.value = request;
  }

  function filter() {
    version = "";
    for (const button of findAll("[data-family]")) {
      const kinds = JSON.parse(button.dataset.kinds), number = kinds.filter((kind) => chosen.has(kind)).length;
      button.setAttribute("aria-pressed", number === kinds.length ? "true" : number ? "mixed" : "false");
    }
    for (const box of findAll(".kinds input")) box.checked = chosen.has(box.value);
    find(".kinds > summary").textContent = chosen.size ? "kinds · " + chosen.size : "kinds";
    window.microVLLM.pollSoon();
  }

  function toggleFamily(button) {
    const kinds = JSON.parse(button.dataset.kinds), on = button.getAttribute("aria-pressed") === "true";
    for (const kind of kinds) if (on) chosen.delete(kind); else chosen.add(kind);
    filter();
  }

  function choose(id, isFocus) {
    request = id;
    byFocus = isFocus && id !== "";
    letters = "";  // the list may have to name it
    const select = find("#event-request");
    if (id && ![...select.options].some((option) => option.value === id)) select.append(new Option("…", id));
    select.value = id;
    filter();
  }

  // What the page follows, the table follows; a choice made here stays when the page lets go.
  function focused(event) {
    const id = event.detail ? event.detail.request : "";
    if (id) choose(id, true);
    else if (byFocus) choose("", false);
  }

  // ---------------------------------------------------------------- what rows do

  function pressed({ target }) {
    const { step, request: id } = target.dataset;
    if (id) window.microVLLM.focus({ request: id });
    else if (step) goTo(step);
  }

  function goTo(step) {
    const slider = document.getElementById("step-cursor");
    if (!slider) return;
    slider.value = step;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function save() {
    const until = window.microVLLM.step ? window.microVLLM.step() : null;
    window.microVLLM.download("events.csv", { kinds: [...chosen], request_id: request || null, until }, "events.csv");
  }

  // ---------------------------------------------------------------- start

  function start(element) {
    find = (selector) => element.querySelector(selector);
    findAll = (selector) => element.querySelectorAll(selector);
    for (const button of findAll("[data-family]")) button.addEventListener("click", () => toggleFamily(button));
    for (const box of findAll(".kinds input")) box.addEventListener("change", () => {
      if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
      filter();
    });
    find("#event-request").addEventListener("change", ({ target }) => choose(target.value, false));
    find("#event-csv").addEventListener("click", save);
    find("tbody").addEventListener("click", pressed);
    const kinds = find(".kinds");
    kinds.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !kinds.open) return;
      event.preventDefault();
      kinds.open = false;
      find(".kinds > summary").focus();
    });
    document.addEventListener("pointerdown", (event) => { if (!kinds.contains(event.target)) kinds.open = false; });
    window.addEventListener("mv:focus", focused);
    const charts = document.getElementById("charts");
    if (charts) charts.addEventListener("scroll", wake, { passive: true });
    addEventListener("scroll", wake, { passive: true });
    window.microVLLM.pane("events", ask, show);
  }

  // Scrolled into view: do not wait for the next calm poll.
  let seen = false;
  function wake() {
    const now = ask() != null;
    if (now && !seen) window.microVLLM.pollSoon();
    seen = now;
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { events: start });
})();
