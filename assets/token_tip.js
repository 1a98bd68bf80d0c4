/* The tooltip of the token strip: how likely a token was, what else was likely, and where it lies in the cache. */
(function () {
  "use strict";

  const HIDE_AFTER = 220, GAP = 1, MARGIN = 8;

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text != null) node.textContent = text;
    return node;
  }

  function percent(p) {
    if (p == null) return "unknown";
    if (p < 0.0005) return "< 0.1 %";
    return (p < 0.0995 ? (100 * p).toFixed(1) : Math.round(100 * p)) + " %";
  }

  // What stands for a piece: blanks and line breaks can be seen where a token is nothing else.
  function visible(piece) {
    const signs = piece.replace(/\r?\n/g, "↵").replace(/\t/g, "→");
    return /^[\s↵→]*$/.test(signs) ? signs.replace(/\s/g, "·") : signs;
  }

  function quoted(token) {
    const text = token.special || token.piece === "" ? token.word : token.piece;
    return "“" + text.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/^ | $/g, "·") + "”";
  }

  function facts(token, index, shown) {
    const words = [];
    if (token.special) words.push("special token");
    else if (token.piece === "") words.push("a part of a character");
    if (index < shown.kept) words.push("kept from before: its probability is not known");
    else if (token.p == null) words.push("probability not known");
    else words.push(percent(token.p) + ", rank " + token.rank.toLocaleString("en"));
    if (shown.cut != null && index >= shown.cut) words.push("left out of the text");
    return words.join(" · ");
  }

  function bars(token, index, shown) {
    const list = make("div", "bars"), most = Math.max(...token.best.map(([, , p]) => p), token.p || 0) || 1;
    const rows = token.best.map(([id, word, p], i) => ({ id, word, p, rank: i + 1 }));
    if (!rows.some((row) => row.id === token.id)) rows.push({ id: token.id, word: token.word, p: token.p, rank: token.rank });
    const canBranch = shown.finished && shown.turn != null && index >= shown.kept;
    for (const { id, word, p, rank } of rows) {
      const isChosen = id === token.id, row = make(isChosen ? "div" : "button", "row");
      const name = visible(word) || "∅", bar = make("span", "bar"), filled = make("i");
      filled.style.width = Math.max(1, 100 * p / most) + "%";
      bar.append(filled);
      row.append(make("span", "rank", rank.toLocaleString("en")), make("span", "name", name), bar, make("span", "p", percent(p)));
      if (isChosen) { row.classList.add("chosen"); row.append(make("span", "mark", "✓")); }
      else {
        row.type = "button";
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

  function whereabouts(index, { start, table: { size, blocks, computed } }) {
    const position = start + index, words = "token " + position.toLocaleString("en") + " of the request";
    const block = size ? blocks[Math.floor(position / size)] : undefined;
    return !block || position >= computed ? words : words + " · block " + block + ", slot " + position % size;
  }

  // `of.shown()`: the answer in the strip; `of.node(index)`: the button of a token; `of.list()`: what they stand in.
  function tokenTip(of) {
    const root = make("div");
    root.id = "token-tip";
    root.hidden = true;
    root.setAttribute("role", "dialog");
    root.setAttribute("aria-label", "token");
    const tip = { root, owner: 0, pinned: false, show, hide, hideSoon, place, refresh, alternatives };
    let hiding = 0;

    function alternatives() { return [...root.querySelectorAll("button")]; }

    function show(index) {
      clearTimeout(hiding);
      if (!of.node(index)) return;
      of.node(tip.owner)?.removeAttribute("aria-describedby");
      if (tip.owner !== index) tip.pinned = false;
      tip.owner = index;
      fill();
      of.node(index).setAttribute("aria-describedby", root.id);
      if (!root.isConnected) (document.querySelector(".gradio-container") || document.body).append(root);
      root.hidden = false;
      place();
    }

    function hide() {
      clearTimeout(hiding);
      tip.pinned = false;
      root.hidden = true;
      of.node(tip.owner)?.removeAttribute("aria-describedby");
    }

    function hideSoon() {
      clearTimeout(hiding);
      hiding = setTimeout(() => {
        const node = of.node(tip.owner), hasFocus = node === document.activeElement && node.matches(":focus-visible");
        if (!tip.pinned && !hasFocus && !root.contains(document.activeElement) && !root.matches(":hover") &&
            !of.list().querySelector(".token:hover")) hide();
      }, HIDE_AFTER);
    }

    function fill() {
      const shown = of.shown(), index = tip.owner, token = shown.tokens[index];
      if (!token) return hide();
      const head = make("div", "head");
      head.append(make("b", "word", quoted(token)), make("span", "id", "id " + token.id));
      const parts = [head, make("p", "facts", facts(token, index, shown))];
      if (token.best.length) parts.push(bars(token, index, shown));
      parts.push(make("p", "place", whereabouts(index, shown)));
      root.replaceChildren(...parts);
    }

    // The server has told more of the answer: where its blocks are, that it has ended.
    function refresh() {
      if (root.hidden) return;
      const focused = alternatives().indexOf(document.activeElement);
      fill();
      if (focused >= 0) alternatives()[focused]?.focus();
    }

    // Above the token if there is room, or else below it; never beyond an edge of the window.
    function place() {
      const node = of.node(tip.owner);
      if (!node) return hide();
      const at = node.getBoundingClientRect(), box = of.list().getBoundingClientRect();
      if (at.bottom < box.top || at.top > box.bottom) return hide();
      const { offsetWidth: width, offsetHeight: height } = root;
      const above = at.top - height - GAP, below = at.bottom + GAP;
      const top = above >= MARGIN ? above : Math.min(below, innerHeight - height - MARGIN);
      const left = Math.min(at.left + at.width / 2 - width / 2, innerWidth - width - MARGIN);
      root.style.top = Math.max(MARGIN, top) + "px";
      root.style.left = Math.max(MARGIN, left) + "px";
    }

    function move(event) {
      const rows = alternatives(), at = rows.indexOf(document.activeElement);
      if (event.key === "ArrowDown") rows[Math.min(at + 1, rows.length - 1)].focus();
      else if (event.key === "ArrowUp" && at > 0) rows[at - 1].focus();
      else if (["ArrowUp", "ArrowLeft", "Escape"].includes(event.key)) {
        of.node(tip.owner)?.focus();
        if (event.key === "Escape") hide();
      } else return;
      event.preventDefault();
    }

    function branch(row) {
      if (row.getAttribute("aria-disabled") === "true") return;
      const { turn, kept } = of.shown();
      hide();
      window.microVLLM.chat?.branch?.({ turn, index: tip.owner - kept, token_id: Number(row.dataset.id) });
    }

    const isOf = (node) => root.contains(node) || Boolean(of.list()?.contains(node));
    root.addEventListener("pointerenter", () => clearTimeout(hiding));
    root.addEventListener("pointerleave", hideSoon);
    root.addEventListener("focusout", (event) => { if (!isOf(event.relatedTarget)) hideSoon(); });
    root.addEventListener("click", ({ target }) => { const row = target.closest("button"); if (row) branch(row); });
    root.addEventListener("keydown", move);
    document.addEventListener("pointerdown", (event) => { if (!root.hidden && !isOf(event.target)) hide(); });
    document.addEventListener("scroll", () => { if (!root.hidden) place(); }, true);
    window.addEventListener("resize", hide);
    return tip;
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { tokenTip, tokenWords: { percent, visible } });
})();
