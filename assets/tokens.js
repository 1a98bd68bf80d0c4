/* The token strip: an answer as the tokens it consists of, each with its probability and what else was likely.
   There is one strip on the page; it stands below the answer it shows. Everything it knows comes from the pane "strip"
   (ui/tokens/store.py). */
(function () {
  "use strict";

  const KEPT = "mv-tokens", LIKELY = [0.9, 0.5, 0.25, 0.1];  // tints; below the last one a token is surprising
  const { percent, visible } = window.microVLLM.tokenWords;

  let strip = null;      // {root, toggle, list, note, count, legend, end}
  let shown = null;      // {request, turn, tokens, start, kept, cut, finished, table, gone}
  let followed = null;   // {request, position}: what the charts follow
  const tip = window.microVLLM.tokenTip({ shown: () => shown, node: nodeOf, list: () => strip && strip.list });

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text != null) node.textContent = text;
    return node;
  }

  function button(className, text) {
    const node = make("button", className, text);
    node.type = "button";
    return node;
  }

  function isUnfolded() {
    try { return localStorage.getItem(KEPT) !== "folded"; } catch (error) { return true; }
  }

  // ---------------------------------------------------------------- words

  function spoken(text) {
    return text.replace(/\n/g, " line break ").replace(/\t/g, " tab ").replace(/^ +$/, " blank ").trim() || "nothing";
  }

  function tint(p) {
    if (p == null) return "unknown";
    const step = LIKELY.findIndex((least) => p >= least);
    return "p" + (step < 0 ? LIKELY.length : step);
  }

  // [id, piece, word, special, probability, rank, alternatives], as the server sends it.
  function read([id, piece, word, special, p, rank, best]) {
    return { id, piece, word: word || piece, special: Boolean(special), p, rank, best };
  }

  // ---------------------------------------------------------------- the strip

  function build() {
    const root = make("section");
    root.id = "token-strip";
    root.setAttribute("aria-label", "tokens of this answer");
    const head = make("div", "head"), toggle = button("toggle", "tokens");
    toggle.title = "the tokens of this answer, and what else was likely";
    toggle.setAttribute("aria-controls", "token-list");
    const legend = make("span", "legend");
    legend.title = "how likely the model itself found each token; what it gave less than 10 % is underlined";
    legend.append("likely ");
    for (let step = 0; step <= LIKELY.length; step++) legend.append(make("i", "p" + step));
    legend.append(" surprising");
    const count = make("span", "count");
    head.append(toggle, legend, count);
    const list = make("div", "list"), note = make("p", "gone");
    list.id = "token-list";
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", "tokens: arrow keys move, arrow down goes to the alternatives");
    note.hidden = true;
    root.append(head, list, note);
    strip = { root, toggle, list, note, count, legend, end: window.microVLLM.keepAtEnd(list) };
    toggle.addEventListener("click", () => unfold(toggle.getAttribute("aria-expanded") !== "true"));
    listen();
    unfold(isUnfolded());
  }

  function unfold(isOpen) {
    strip.toggle.setAttribute("aria-expanded", String(isOpen));
    strip.root.classList.toggle("folded", !isOpen);
    try { localStorage.setItem(KEPT, isOpen ? "open" : "folded"); } catch (error) { /* storage is not allowed here */ }
    if (!isOpen) tip.hide();
    window.microVLLM.pollSoon();
  }

  function show(request, slot, { turn } = {}) {
    if (!strip) build();
    tip.hide();
    if (strip.root.parentElement !== slot) slot.append(strip.root);
    if (!shown || shown.request !== request) {
      shown = { request, turn, tokens: [], start: 0, kept: 0, cut: null, finished: false, gone: false, table: { version: 0 } };
      strip.list.replaceChildren();
      strip.count.textContent = "";
      strip.note.hidden = true;
      strip.end.follow();
    }
    shown.turn = turn;
    window.microVLLM.pollSoon();
  }

  function ask() {
    if (!shown || shown.gone || !strip.root.isConnected || strip.root.classList.contains("folded")) return null;
    if (shown.finished && tip.root.hidden) return null;
    return { request: shown.request, since: shown.tokens.length, finished: shown.finished, table: shown.table.version };
  }

  function take(told) {
    if (!shown || told.request !== shown.request) return;
    if (told.gone) {
      shown.gone = true;
      strip.note.textContent = shown.tokens.length ? "" : "The tokens of this answer are not kept any more.";
      strip.note.hidden = Boolean(shown.tokens.length);
      return;
    }
    const wasFinished = shown.finished;
    if (told.table) shown.table = told.table;
    if (told.tokens) takeTokens(told);
    if (told.table || shown.finished !== wasFinished) tip.refresh();
  }

  function takeTokens(told) {
    Object.assign(shown, { start: told.start, kept: told.kept, cut: told.cut, finished: told.finished });
    const added = document.createDocumentFragment();
    shown.tokens.length = told.from;
    while (strip.list.children.length > told.from) strip.list.lastElementChild.remove();
    for (const row of told.tokens) {
      added.append(tokenButton(read(row), shown.tokens.length));
      shown.tokens.push(read(row));
    }
    strip.list.append(added);
    if (!strip.list.querySelector('[tabindex="0"]') && strip.list.firstElementChild) strip.list.firstElementChild.tabIndex = 0;
    const count = shown.tokens.length;
    strip.count.textContent = count.toLocaleString("en") + (count === 1 ? " token" : " tokens");
    if (!shown.finished && tip.root.hidden) strip.end.toEnd();
    markFollowed();
    if (told.more) window.microVLLM.pollSoon();
  }

  function tokenButton(token, index) {
    const isPart = !token.special && token.piece === "";
    const text = token.special || isPart ? token.word : visible(token.piece);
    const node = button("token " + tint(token.p), text);
    node.dataset.index = index;
    node.tabIndex = -1;
    if (token.special) node.classList.add("special");
    if (isPart) node.classList.add("part");
    if (index < shown.kept) node.classList.add("kept");
    if (shown.cut != null && index >= shown.cut) node.classList.add("cut");
    node.setAttribute("aria-label", spoken(token.special ? token.word : token.piece || token.word) +
      (token.special ? ", special token" : "") + (token.p == null ? "" : ", " + percent(token.p)));
    return node;
  }

  function nodeOf(index) { return strip ? strip.list.children[index] : undefined; }

  // ---------------------------------------------------------------- what is under the pointer, or has the focus

  function listen() {
    const list = strip.list;
    const over = (event) => { const node = event.target.closest(".token"); return node ? Number(node.dataset.index) : null; };
    list.addEventListener("pointerover", (event) => {
      const index = over(event);
      if (index != null && !tip.pinned && event.pointerType !== "touch") tip.show(index);
    });
    list.addEventListener("pointerleave", () => tip.hideSoon());
    list.addEventListener("focusin", (event) => {
      const index = over(event);
      if (index == null) return;
      const before = list.querySelector('[tabindex="0"]');
      if (before) before.tabIndex = -1;
      event.target.tabIndex = 0;
      if (event.target.matches(":focus-visible") && (tip.root.hidden || tip.owner !== index)) tip.show(index);
    });
    list.addEventListener("focusout", (event) => {
      if (!list.contains(event.relatedTarget) && !tip.root.contains(event.relatedTarget)) tip.hideSoon();
    });
    list.addEventListener("click", (event) => { const index = over(event); if (index != null) choose(index); });
    list.addEventListener("keydown", (event) => moveInList(event, over(event)));
    list.addEventListener("scroll", () => { if (!tip.root.hidden) tip.place(); });
  }

  function moveInList(event, index) {
    if (index == null) return;
    const last = shown.tokens.length - 1;
    const goal = { ArrowRight: Math.min(index + 1, last), ArrowLeft: Math.max(index - 1, 0), Home: 0, End: last }[event.key];
    if (goal != null) { event.preventDefault(); tip.pinned = false; nodeOf(goal).focus(); }
    else if (event.key === "ArrowDown") {
      event.preventDefault();
      tip.show(index);
      tip.alternatives()[0]?.focus();
    } else if (event.key === "Escape" && !tip.root.hidden) { event.preventDefault(); tip.hide(); }
  }

  // Its request and its place in the cache are followed through the charts; the tooltip stays.
  function choose(index) {
    const again = tip.pinned && tip.owner === index;
    tip.show(index);
    tip.pinned = !again;
    if (again) tip.hide();
    window.microVLLM.focus?.(again ? null : { request: shown.request, position: shown.start + index });
  }

  function markFollowed(what) {
    if (what !== undefined) followed = what;
    const before = strip.list.querySelector(".followed");
    if (before) before.classList.remove("followed");
    const isHere = followed && followed.request === shown.request && followed.position != null;
    const node = isHere && nodeOf(followed.position - shown.start);
    if (node) node.classList.add("followed");
  }

  window.addEventListener("mv:focus", (event) => { if (strip && shown) markFollowed(event.detail || null); });
  window.microVLLM = Object.assign(window.microVLLM || {}, { tokens: { show } });
  window.microVLLM.pane("strip", ask, take);
})();
