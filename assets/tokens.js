/* The token strip: an answer as the tokens it consists of, each with its probability and what else was likely.
   There is one strip on the page; it stands below the answer it shows. Everything it knows comes from the pane "strip"
   (ui/tokens/store.py). */
(function () {
  "use strict";

  const KEPT = "mv-tokens", LIKELY = [0.9, 0.5, 0.25, 0.1];  // tints; below the last one a token is surprising
  const HIDE_AFTER = 220, GAP = 1, MARGIN = 8;

  let strip = null;      // {root, toggle, list, note, count}
  let tip = null;        // {root, owner: index, pinned}
  let shown = null;      // {request, turn, tokens, start, kept, cut, finished, table, gone}
  let followed = null;   // {request, position}: what the charts follow
  let hiding = 0, stays = true;

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

  function percent(p) {
    if (p == null) return "unknown";
    if (p < 0.0005) return "< 0.1 %";
    return (p < 0.0995 ? (100 * p).toFixed(1) : Math.round(100 * p)) + " %";
  }

  // What stands for a piece in the strip: blanks and line breaks can be seen where a token is nothing else.
  function visible(piece) {
    const signs = piece.replace(/\r?\n/g, "↵").replace(/\t/g, "→");
    return /^[\s↵→]*$/.test(signs) ? signs.replace(/\s/g, "·") : signs;
  }

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
    strip = { root, toggle, list, note, count, legend };
    toggle.addEventListener("click", () => unfold(toggle.getAttribute("aria-expanded") !== "true"));
    listen();
    unfold(isUnfolded());
  }

  function unfold(isOpen) {
    strip.toggle.setAttribute("aria-expanded", String(isOpen));
    strip.root.classList.toggle("folded", !isOpen);
    try { localStorage.setItem(KEPT, isOpen ? "open" : "folded"); } catch (error) { /* storage is not allowed here */ }
    if (!isOpen) hideTip();
    window.microVLLM.pollSoon();
  }

  function show(request, slot, { turn } = {}) {
    if (!strip) build();
    hideTip();
    if (strip.root.parentElement !== slot) slot.append(strip.root);
    if (!shown || shown.request !== request) {
      shown = { request, turn, tokens: [], start: 0, kept: 0, cut: null, finished: false, gone: false, table: { version: 0 } };
      strip.list.replaceChildren();
      strip.count.textContent = "";
      strip.note.hidden = true;
      stays = true;
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
    if (!tip.root.hidden && (told.table || shown.finished !== wasFinished))
      fill(tip.owner, tip.root.contains(document.activeElement));
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
    if (stays && !shown.finished && tip.root.hidden) strip.list.scrollTop = strip.list.scrollHeight;
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

  function nodeOf(index) { return strip.list.children[index]; }

  // ---------------------------------------------------------------- what is under the pointer, or has the focus

  function listen() {
    const list = strip.list;
    const over = (event) => { const node = event.target.closest(".token"); return node ? Number(node.dataset.index) : null; };
    list.addEventListener("pointerover", (event) => {
      const index = over(event);
      if (index != null && !tip.pinned && event.pointerType !== "touch") showTip(index);
    });
    list.addEventListener("pointerleave", () => hideSoon());
    list.addEventListener("focusin", (event) => {
      const index = over(event);
      if (index == null) return;
      const before = list.querySelector('[tabindex="0"]');
      if (before) before.tabIndex = -1;
      event.target.tabIndex = 0;
      if (event.target.matches(":focus-visible") && (tip.root.hidden || tip.owner !== index)) showTip(index);
    });
    list.addEventListener("focusout", (event) => {
      if (!list.contains(event.relatedTarget) && !tip.root.contains(event.relatedTarget)) hideSoon();
    });
    list.addEventListener("click", (event) => { const index = over(event); if (index != null) choose(index); });
    list.addEventListener("keydown", (event) => moveInList(event, over(event)));
    list.addEventListener("scroll", () => {
      stays = list.scrollHeight - list.scrollTop - list.clientHeight < 4;
      if (!tip.root.hidden) place();
    });
  }

  function moveInList(event, index) {
    if (index == null) return;
    const last = shown.tokens.length - 1;
    const goal = { ArrowRight: Math.min(index + 1, last), ArrowLeft: Math.max(index - 1, 0), Home: 0, End: last }[event.key];
    if (goal != null) { event.preventDefault(); tip.pinned = false; nodeOf(goal).focus(); }
    else if (event.key === "ArrowDown" && alternatives().length) {
      event.preventDefault();
      showTip(index);
      alternatives()[0].focus();
    } else if (event.key === "Escape" && !tip.root.hidden) { event.preventDefault(); hideTip(); }
  }

  // Its request and its place in the cache are followed through the charts; the tooltip stays.
  function choose(index) {
    const again = tip.pinned && tip.owner === index;
    showTip(index);
    tip.pinned = !again;
    if (again) hideTip();
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

  // ---------------------------------------------------------------- the tooltip

  function buildTip() {
    const root = make("div");
    root.id = "token-tip";
    root.hidden = true;
    root.setAttribute("role", "dialog");
    root.setAttribute("aria-label", "token");
    tip = { root, owner: 0, pinned: false };
    root.addEventListener("pointerenter", () => clearTimeout(hiding));
    root.addEventListener("pointerleave", () => hideSoon());
    root.addEventListener("focusout", (event) => {
      if (!root.contains(event.relatedTarget) && !strip.list.contains(event.relatedTarget)) hideSoon();
    });
    root.addEventListener("click", ({ target }) => { const row = target.closest("button"); if (row) branch(row); });
    root.addEventListener("keydown", moveInTip);
    document.addEventListener("pointerdown", (event) => {
      if (!root.hidden && !root.contains(event.target) && !(strip && strip.list.contains(event.target))) hideTip();
    });
    window.addEventListener("resize", hideTip);
    document.addEventListener("scroll", () => { if (!root.hidden) place(); }, true);
    window.addEventListener("mv:focus", (event) => { if (strip && shown) markFollowed(event.detail || null); });
  }

  function alternatives() { return [...tip.root.querySelectorAll("button")]; }

  function moveInTip(event) {
    const rows = alternatives(), at = rows.indexOf(document.activeElement);
    if (event.key === "ArrowDown") rows[Math.min(at + 1, rows.length - 1)].focus();
    else if (event.key === "ArrowUp" && at > 0) rows[at - 1].focus();
    else if (event.key === "ArrowUp" || event.key === "ArrowLeft" || event.key === "Escape") {
      const owner = nodeOf(tip.owner);
      if (event.key === "Escape") hideTip();
      if (owner) owner.focus();
      if (event.key === "Escape") hideTip();
    } else return;
    event.preventDefault();
  }

  function branch(row) {
    if (row.getAttribute("aria-disabled") === "true") return;
    const index = tip.owner - shown.kept, token_id = Number(row.dataset.id), turn = shown.turn;
    hideTip();
    window.microVLLM.chat?.branch?.({ turn, index, token_id });
  }

  function showTip(index) {
    clearTimeout(hiding);
    if (index >= shown.tokens.length) return;
    const before = nodeOf(tip.owner);
    if (before) before.removeAttribute("aria-describedby");
    if (tip.owner !== index) tip.pinned = false;
    tip.owner = index;
    fill(index);
    nodeOf(index).setAttribute("aria-describedby", "token-tip");
    if (!tip.root.isConnected) (document.querySelector(".gradio-container") || document.body).append(tip.root);
    tip.root.hidden = false;
    place();
  }

  function hideSoon() {
    clearTimeout(hiding);
    hiding = setTimeout(() => {
      if (!tip.pinned && !tip.root.contains(document.activeElement) && !tip.root.matches(":hover") &&
          !strip.list.querySelector(".token:hover") && !isFocusShown()) hideTip();
    }, HIDE_AFTER);
  }

  function isFocusShown() {
    const node = nodeOf(tip.owner);
    return Boolean(node) && node === document.activeElement && node.matches(":focus-visible");
  }

  function hideTip() {
    clearTimeout(hiding);
    tip.pinned = false;
    tip.root.hidden = true;
    const owner = strip && nodeOf(tip.owner);
    if (owner) owner.removeAttribute("aria-describedby");
  }

  function fill(index, keepsFocus) {
    const token = shown.tokens[index];
    if (!token) return hideTip();
    const focused = keepsFocus ? alternatives().indexOf(document.activeElement) : -1;
    const head = make("div", "head");
    head.append(make("b", "word", quoted(token)), make("span", "id", "id " + token.id));
    const parts = [head, make("p", "facts", facts(token, index))];
    if (token.best.length) parts.push(bars(token, index));
    parts.push(make("p", "place", whereabouts(index)));
    tip.root.replaceChildren(...parts);
    if (focused >= 0) alternatives()[focused]?.focus();
  }

  function quoted(token) {
    const text = token.special || token.piece === "" ? token.word : token.piece;
    return "“" + text.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/^ | $/g, "·") + "”";
  }

  function facts(token, index) {
    const words = [];
    if (token.special) words.push("special token");
    else if (token.piece === "") words.push("a part of a character");
    if (index < shown.kept) words.push("kept from before: its probability is not known");
    else if (token.p == null) words.push("probability not known");
    else words.push(percent(token.p) + ", rank " + token.rank.toLocaleString("en"));
    if (shown.cut != null && index >= shown.cut) words.push("left out of the text");
    return words.join(" · ");
  }

  function bars(token, index) {
    const list = make("div", "bars"), most = Math.max(...token.best.map(([, , p]) => p), token.p || 0) || 1;
    const rows = token.best.map(([id, word, p], i) => ({ id, word, p, rank: i + 1 }));
    if (!rows.some((row) => row.id === token.id)) rows.push({ id: token.id, word: token.word, p: token.p, rank: token.rank });
    const canBranch = shown.finished && shown.turn != null && index >= shown.kept;
    for (const { id, word, p, rank } of rows) {
      const isChosen = id === token.id, row = isChosen ? make("div", "row chosen") : button("row");
      const name = visible(word) || "∅", bar = make("span", "bar"), filled = make("i");
      filled.style.width = Math.max(1, 100 * p / most) + "%";
      bar.append(filled);
      row.append(make("span", "rank", rank.toLocaleString("en")), make("span", "name", name), bar, make("span", "p", percent(p)));
      if (isChosen) row.append(make("span", "mark", "✓"));
      else {
        row.dataset.id = id;
        row.setAttribute("aria-disabled", String(!canBranch));
        row.title = canBranch ? "go on from this token instead: a new version of the answer" :
          shown.turn == null ? "" : "when the answer has ended, you can go on from here";
        row.setAttribute("aria-label", name + ", " + percent(p) + (canBranch ? ": go on from here" : ""));
      }
      list.append(row);
    }
    return list;
  }

  function whereabouts(index) {
    const position = shown.start + index, { size, blocks, computed } = shown.table;
    const words = "token " + position.toLocaleString("en") + " of the request";
    const block = size ? blocks[Math.floor(position / size)] : undefined;
    if (!block || position >= computed) return words;
    return words + " · block " + block + ", slot " + position % size;
  }

  // Above the token if there is room, or else below it; never beyond an edge of the window.
  function place() {
    const node = nodeOf(tip.owner);
    if (!node) return hideTip();
    const at = node.getBoundingClientRect(), box = strip.list.getBoundingClientRect();
    if (at.bottom < box.top || at.top > box.bottom) return hideTip();
    const { offsetWidth: width, offsetHeight: height } = tip.root;
    const above = at.top - height - GAP, below = at.bottom + GAP;
    const top = above >= MARGIN ? above : Math.min(below, innerHeight - height - MARGIN);
    const left = Math.min(Math.max(at.left + at.width / 2 - width / 2, MARGIN), innerWidth - width - MARGIN);
    tip.root.style.top = Math.max(MARGIN, top) + "px";
    tip.root.style.left = Math.max(MARGIN, left) + "px";
  }

  buildTip();
  window.microVLLM = Object.assign(window.microVLLM || {}, { tokens: { show } });
  window.microVLLM.pane("strip", ask, take);
})();
