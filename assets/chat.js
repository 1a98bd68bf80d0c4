/* The chat: holds its turns, asks the server for answers, and takes what comes. The chat in this page is the one
   truth: it goes up with every question, so that neither a restart nor a lost session loses any of it. */
(function () {
  "use strict";

  const MAX_VERSIONS = 32, MAX_TEXT = 1000000;
  const SAVE_AFTER = 400;
  const $ = (id) => document.getElementById(id);
  const { chatStore: store, randomId, setText } = window.microVLLM;

  let parts = null, view = null, runs = null;
  let chat = newChat("chat"), saveTimer = 0;

  function newChat(mode) { return { id: randomId(), mode, turns: [] }; }

  function box() { return document.querySelector("#prompt textarea"); }

  function lastTurn() { return chat.turns[chat.turns.length - 1]; }

  function shown(turn) { return turn.versions[turn.shown]; }

  const isBusy = () => Boolean(runs.current());

  const isWriting = (turn) => isBusy() && runs.current().turn === turn;

  function sync() {
    const run = runs.current(), last = lastTurn();
    view.sync(chat, run && run.turn);
    $("send").disabled = Boolean(run);
    $("stop").disabled = !run || run.isStopped;
    $("retry").disabled = Boolean(run) || !last;
    $("continue").disabled = Boolean(run) || !last || last.role === "user";
    $("undo").disabled = Boolean(run) || !last;
    $("composer").dataset.busy = String(Boolean(run));
    for (const radio of parts.element.querySelectorAll("[name=chat-mode]")) radio.checked = radio.value === chat.mode;
    saveSoon();
  }

  // ---------------------------------------------------------------- asking

  function say(text) {
    if (isBusy() || !text.trim()) return false;
    if (text.length > MAX_TEXT) {
      notice("Your message is " + text.length.toLocaleString("en") + " characters long; at most " +
        MAX_TEXT.toLocaleString("en") + " are allowed. Shorten it.");
      return false;
    }
    hideNotice();
    const before = runs.snapshot();
    chat.turns.push({ role: "user", text });
    const document_ = store.bare(chat);
    const turn = { role: "assistant", shown: 0, versions: [{ text: "", token_ids: [] }] };
    chat.turns.push(turn);
    runs.begin({ do: "answer", document: document_ }, turn, before, text);
    return true;
  }

  function send() {
    if (say(box().value)) setText(box(), "");
    box().focus();
  }

  function addVersion(turn, version) {
    const versions = turn.versions.concat(version).slice(-MAX_VERSIONS);
    Object.assign(turn, { versions, shown: versions.length - 1 });
  }

  function retry() {
    if (isBusy() || !chat.turns.length) return;
    const before = runs.snapshot(), last = lastTurn();
    if (last.role === "user") chat.turns.push({ role: "assistant", shown: 0, versions: [{ text: "", token_ids: [] }] });
    else addVersion(last, { text: "", token_ids: [] });
    runs.begin({ do: "answer", document: store.bare(chat, chat.turns.slice(0, -1)) }, lastTurn(), before);
  }

  function goOn() {
    const last = lastTurn();
    if (isBusy() || !last || last.role === "user") return;
    const before = runs.snapshot(), document_ = store.bare(chat);
    replaceShown(last, Object.assign({}, shown(last)));
    runs.begin({ do: "continue", document: document_ }, last, before);
  }

  // Another token in the place of one of an answer's own, then on from there: a new version of that answer. `index`
  // counts the tokens of the request that the strip shows.
  function branch({ turn: number, index, token_id }) {
    const turn = chat.turns[number];
    if (isBusy() || !turn || turn.role === "user") return;
    const before = runs.snapshot(), from = shown(turn);
    const document_ = store.bare(chat, chat.turns.slice(0, number + 1));
    addVersion(turn, { text: "", token_ids: [] });
    runs.begin({ do: "branch", document: document_, index: (from.num_kept || 0) + index, token_id }, turn, before);
  }

  function replaceShown(turn, version) {
    turn.versions = turn.versions.map((old, i) => (i === turn.shown ? version : old));
  }

  function stop() {
    runs.stop();
    box().focus();
  }

  function backIntoBox(text) {
    const now = box().value;
    setText(box(), now.trim() ? text + "\n" + now : text);
  }

  function showTokens(turn) {
    const version = shown(turn), slot = view.slot(turn);
    if (!version.request_id || !slot || !window.microVLLM.tokens) return;
    window.microVLLM.tokens.show(version.request_id, slot, { turn: chat.turns.indexOf(turn) });
  }

  // ---------------------------------------------------------------- changing the chat

  function clear(mode) {
    runs.leave();
    archive();
    chat = newChat(mode);
    hideNotice();
    sync();
    save();
  }

  function archive() { if (chat.turns.length) store.keep(chat.id, store.bare(chat)); }

  // A chat of a file or of the list, as the server has checked and drawn it.
  function adopt(told, id) {
    clear(told.document.mode);
    chat.id = id || chat.id;
    chat.turns = told.document.turns;
    addShown(chat.turns, told.shown);
    sync();
    save();
  }

  function addShown(turns, looks) {
    turns.forEach((turn, i) => {
      if (turn.role === "user") turn.html = looks[i].html;
      else turn.versions.forEach((version, k) => Object.assign(version, looks[i].versions[k]));
    });
  }

  function undo() {
    if (isBusy() || !chat.turns.length) return;
    let prompt = "";
    while (chat.turns.length) {
      const turn = chat.turns.pop();
      if (turn.role === "user") { prompt = turn.text; break; }
    }
    if (prompt) backIntoBox(prompt);
    sync();
    box().focus();
  }

  function edit(turn, text) {
    if (isWriting(turn) || !text.trim()) return false;
    if (turn.role === "user") Object.assign(turn, { text, html: undefined });
    else if (text !== shown(turn).text) replaceShown(turn, Object.assign({}, shown(turn),
      { text, html: undefined, token_ids: [], num_kept: 0, is_edited: true }));
    sync();
    draw();
    return true;
  }

  // Messages after the answer to this prompt.
  function later(turn) { return Math.max(0, chat.turns.length - chat.turns.indexOf(turn) - 2); }

  function answerAgain(turn, text) {
    if (isBusy() || !text.trim()) return false;
    if (later(turn)) { archive(); chat.id = randomId(); }  // what follows stays in the chat that was kept
    const before = runs.snapshot(), at = chat.turns.indexOf(turn), answer = chat.turns[at + 1];
    const kept = answer && answer.role === "assistant" ? answer : { role: "assistant", shown: 0, versions: [] };
    chat.turns = [...chat.turns.slice(0, at + 1), kept];
    Object.assign(turn, { text, html: undefined });
    addVersion(kept, { text: "", token_ids: [] });
    runs.begin({ do: "answer", document: store.bare(chat, chat.turns.slice(0, -1)) }, kept, before);
    draw();
    return true;
  }

  function showVersion(turn, step) {
    const to = turn.shown + step;
    if (isWriting(turn) || !turn.versions[to]) return;
    turn.shown = to;
    sync();
    if (view.slot(turn).childElementCount) showTokens(turn);  // the strip that stands here is another answer's
  }

  // ---------------------------------------------------------------- how texts look: the server draws them

  async function draw() {
    const asked = chat.turns.slice();
    const told = await ask(store.bare(chat));
    if (!told || !told.document) return told && notice("This chat cannot be shown: " + told.error);
    asked.forEach((turn, i) => {  // unless it was changed since
      const now = told.document.turns[i], look = told.shown[i];
      if (turn.role === "user") { if (turn.text === now.text) turn.html = look.html; return; }
      turn.versions.forEach((version, k) => {
        const same = now.versions[k] && now.versions[k].text === version.text && !(isBusy() && runs.current().version === version);
        if (same) Object.assign(version, look.versions[k]);
      });
    });
    sync();
    return told;
  }

  async function ask(document_) {
    for (let tries = 0; tries < 5; tries++) {
      // Without a connection Gradio's call throws, or answers with nothing: again, in a moment.
      try {
        const told = await parts.server.render(document_);
        if (told) return told;
      } catch (error) { /* as above */ }
      await new Promise((go) => setTimeout(go, 1000 * (tries + 1)));
    }
    return null;
  }

  // ---------------------------------------------------------------- kept over a reload

  function systemPrompt() { const field = document.querySelector("#system-prompt textarea"); return field ? field.value : ""; }

  function saveSoon() { if (!saveTimer) saveTimer = setTimeout(save, SAVE_AFTER); }

  function save() {
    clearTimeout(saveTimer);
    saveTimer = 0;
    // What the engine has not got is kept as if it had not been sent: a reload must not swallow what was typed.
    const run = runs.current(), isPending = run && !run.isSent;
    const turns = isPending ? run.before.map(({ copy }) => copy) : chat.turns;
    const typed = box() ? box().value : "";
    const draft = isPending && run.typed ? (typed.trim() ? run.typed + "\n" + typed : run.typed) : typed;
    const writing = run && run.isSent ? chat.turns.indexOf(run.turn) : -1;
    store.saveCurrent(Object.assign(store.bare(chat, turns), { id: chat.id, draft, writing, system_prompt: systemPrompt() }));
  }

  function restore() {
    const kept = store.current();
    if (!kept) return sync();
    chat = { id: typeof kept.id === "string" ? kept.id : randomId(), mode: kept.mode, turns: kept.turns };
    const broken = chat.turns[kept.writing];
    if (broken && broken.role === "assistant") shown(broken).note = "the page was loaded again before it was finished.";
    if (kept.draft && !box().value) setText(box(), kept.draft);
    const system = document.querySelector("#system-prompt textarea");
    if (kept.system_prompt && system && !system.value) setText(system, kept.system_prompt);
    sync();
    if (chat.turns.length) draw();
  }

  // ---------------------------------------------------------------- words for the reader

  function notice(words) {
    const node = parts.element.querySelector(".notice");
    node.querySelector("span").textContent = words;
    node.hidden = false;
  }

  function hideNotice() { parts.element.querySelector(".notice").hidden = true; }

  // ---------------------------------------------------------------- the start

  function whenThere(then) {
    const ready = box() && $("send") && document.querySelector("#system-prompt textarea");
    if (ready) then();
    else requestAnimationFrame(() => whenThere(then));
  }

  function connect() {
    const acts = { edit, later, answerAgain, send: say, show: showVersion, tokens: showTokens,
      focus: (request) => window.microVLLM.focus && window.microVLLM.focus({ request }) };
    view = window.microVLLM.chatView(parts.element.querySelector(".log"), acts);
    runs = window.microVLLM.chatRuns({ chat: () => chat, sync, save, showTokens, notice, backIntoBox, events: parts.events,
      trigger: parts.trigger });
    for (const [id, act] of Object.entries({ send, stop, retry, continue: goOn, undo,
      "new-chat": () => { clear(chat.mode); box().focus(); } })) $(id).addEventListener("click", act);
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      event.stopPropagation();
      if (!isBusy()) send();
    }, true);
    $("prompt").addEventListener("input", saveSoon);
    for (const radio of parts.element.querySelectorAll("[name=chat-mode]"))
      radio.addEventListener("change", () => { if (radio.value !== chat.mode) clear(radio.value); });
    parts.element.querySelector(".notice button").addEventListener("click", hideNotice);
    window.addEventListener("pagehide", save);
    document.addEventListener("visibilitychange", () => { if (document.hidden) save(); });
    window.microVLLM.chatMenus(parts.element, { chat: () => chat, bare: () => store.bare(chat), adopt, ask, notice, systemPrompt,
      setSystemPrompt: (text) => setText(document.querySelector("#system-prompt textarea"), text) });
    parts.watch("value", () => runs.take(parts.props.value));
    restore();
  }

  function startChat(given, answer, halt) {
    parts = Object.assign(given, { events: { answer, halt } });
    whenThere(connect);
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { startChat,
    chat: { branch, send: say, document: () => store.bare(chat) } });
})();
