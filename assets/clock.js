/* One step cursor for all charts: live, pause the view, step, drag, play, jump. */
(function () {
  "use strict";

  const KINDS = { preempted: ["preemption", "×"], hit: ["prefix hit", "◆"], evicted: ["eviction", "▿"], failed: ["failed step", "!"] };

  let bar = null, find = null;
  let clock = null;           // what the server said last
  let marks = {}, marksVersion = "";
  let cursor = null;          // the wanted step, null: the newest
  let source = "live", story = "";
  let jump = null;            // one question
  let play = null;            // {from, at}: started at that step and moment
  let held = false;           // the slider is in somebody's hand

  // ---------------------------------------------------------------- question and answer

  function ask() {
    if (play) cursor = playedTo();
    return { source, story, cursor, marks: marksVersion, jump: jump ? { kind: jump.kind, direction: jump.direction } : null };
  }

  function show({ clock: told }, wanted) {
    if (!bar || !told || wanted.source !== source) return;  // it was asked before something else was looked at
    if (told.story !== story) changeStory(told);
    clock = told;
    if (told.marks) marks = told.marks;
    const marksChanged = told.marks || bar.dataset.marks !== told.marks_version;
    marksVersion = bar.dataset.marks = told.marks_version;
    if (jump) finishJump(told);
    // The end of the story: from here on what is newest is on show.
    if (play && cursor >= told.last) live();
    if (marksChanged) drawMarks();
    render();
    if (play) window.microVLLM.stayBusy();
  }

  function changeStory(told) {
    if (story) { cursor = null; play = null; jump = null; }
    story = told.story;
    if (source === "file" && !told.is_file) {
      source = "live";
      say("The opened trace is not on the server any more; open it again.");
    }
  }

  function finishJump(told) {
    const [name] = KINDS[jump.kind];
    if (told.jumped) {
      cursor = told.step;
      say("step " + told.step + ": " + name);
    } else if (told.jumped === false) {
      say("no " + (jump.direction > 0 ? "later " : "earlier ") + name);
    }
    if (told.jumped !== undefined) jump = null;
  }

  // ---------------------------------------------------------------- what the buttons do

  function go(step) {
    play = null;
    jump = null;
    cursor = step;
    render();
    window.microVLLM.pollSoon();
  }

  function live() { go(null); }

  function at() { return cursor == null ? clock.step : Math.min(Math.max(cursor, clock.first), clock.last); }

  function stepBy(count) {
    if (!clock) return;
    const step = at() + count;
    if (step > clock.last) live();
    else go(Math.min(Math.max(step, clock.first), clock.last));
  }

  function pause() {
    if (!clock) return;
    if (play || cursor == null) go(at());
    else live();
  }

  function playOrStop() {
    if (!clock) return;
    if (play) return go(at());
    const from = cursor == null || cursor >= clock.last ? clock.first : at();
    go(from);
    play = { from, at: performance.now() };
    render();
  }

  function playedTo() {
    const speed = Number(find("#play-speed").value) || 5;
    const last = clock ? clock.last : play.from;
    return Math.min(last, play.from + Math.floor((performance.now() - play.at) / 1000 * speed));
  }

  function jumpBy(direction) {
    if (!clock) return;
    const kind = find("#jump-kind").value;
    if (play) go(at());
    jump = { kind, direction };
    window.microVLLM.pollSoon();
  }

  // ---------------------------------------------------------------- what is seen

  function text(node, words) {
    if (node.textContent !== words) node.textContent = words;
  }

  function say(words) { text(find("#clock-status"), words); }

  function render() {
    if (!clock) return;
    const step = at(), behind = cursor != null && clock.last > step, stays = cursor != null && !play;
    bar.dataset.mode = play ? "play" : cursor == null ? "live" : "paused";
    const slider = find("#step-cursor");
    if (slider.min !== String(clock.first)) slider.min = clock.first;
    if (slider.max !== String(clock.last)) slider.max = clock.last;
    const shown = cursor == null ? clock.last : step;
    if (!held && slider.value !== String(shown)) slider.value = shown;
    slider.setAttribute("aria-valuetext", "step " + step + " of " + clock.last);
    const span = Math.max(1, clock.last - clock.first);
    slider.style.setProperty("--at", (shown - clock.first) / span);
    text(find(".at"), step.toLocaleString("en"));
    text(find(".of"), " / " + clock.last.toLocaleString("en"));
    text(find(".seconds"), clock.seconds.toFixed(2) + " s");
    pressed("#pause", stays, stays ? "go on: show what is newest" : "pause the view; the engine goes on");
    pressed("#play", !!play, play ? "stop playing" : "play from here to the end");
    pressed("#live", cursor == null, clock.is_file || clock.is_sample ? "show the last step" : "follow the engine");
    text(find("#live .word"), clock.is_file || clock.is_sample ? "end" : "live");
    find("#step-back").disabled = step <= clock.first;
    // The engine goes on while the view stands still: said in words, with the way back beside it.
    const past = behind && !clock.is_file && !clock.is_sample;
    find("#clock-note").hidden = !past && !clock.is_file;
    text(find("#clock-note .words"), clock.is_file ? clock.title + (behind ? " · looking at step " + step : "")
      : "looking at step " + step + "; the engine is at " + clock.last);
    find("#back-to-live").hidden = !past;
    find("#close-trace").hidden = !clock.is_file;
  }

  function pressed(id, is, title) {
    const button = find(id);
    button.setAttribute("aria-pressed", String(is));
    if (button.title !== title) { button.title = title; button.setAttribute("aria-label", title); }
  }

  // Shapes tell the kinds apart, words come with the pointer; keyboards and screen readers use the jump buttons.
  function drawMarks() {
    const made = [];
    for (const [kind, steps] of Object.entries(marks)) {
      const [name, sign] = KINDS[kind] || [kind, "·"];
      for (const step of steps) {
        const tick = document.createElement("i");
        tick.className = "t-" + kind;
        tick.style.setProperty("--step", step);
        tick.title = "step " + step + ": " + name;
        tick.textContent = sign;
        tick.dataset.step = step;
        made.push(tick);
      }
    }
    find(".ticks").replaceChildren(...made);
  }

  function placeMarks() {
    const ticks = find(".ticks");
    ticks.style.setProperty("--first", clock.first);
    ticks.style.setProperty("--span", Math.max(1, clock.last - clock.first));
  }

  // ---------------------------------------------------------------- start

  function start(element) {
    bar = element.querySelector("#clock");
    find = (selector) => element.querySelector(selector);
    const on = (id, does, kind = "click") => find(id).addEventListener(kind, does);
    on("#step-back", () => stepBy(-1));
    on("#step-forward", () => stepBy(1));
    on("#pause", pause);
    on("#play", playOrStop);
    on("#live", live);
    on("#back-to-live", live);
    on("#jump-back", () => jumpBy(-1));
    on("#jump-forward", () => jumpBy(1));
    on("#play-speed", () => { if (play) play = { from: at(), at: performance.now() }; }, "change");
    on(".ticks", ({ target }) => { if (target.dataset.step) go(Number(target.dataset.step)); });
    const slider = find("#step-cursor");
    slider.addEventListener("input", () => go(Number(slider.value)));
    slider.addEventListener("pointerdown", () => { held = true; });
    for (const end of ["pointerup", "pointercancel", "blur"]) slider.addEventListener(end, () => { held = false; });
    window.microVLLM.focusCard(element.querySelector("#focus-card"));
    window.microVLLM.traceFiles(element);
    window.microVLLM.part(ask, (answer, wanted) => { show(answer, wanted); if (clock) placeMarks(); });
  }

  // Look at the opened trace, or at the engine again.
  function look(where) {
    source = where;
    cursor = play = jump = null;
    story = "";
    window.microVLLM.pollSoon();
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { clock: start, lookAt: look, source: () => source,
    step: () => (clock ? at() : null), sayClock: say });
})();
