/* The tokens room: a text as the tokens it is cut into, and the chat as the model reads it (ui/tokens/tokenizer_panel.py). */
(function () {
  "use strict";

  const PAUSE = 150;     // milliseconds without a key before the text goes to the server
  const TINTS = 4;

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text != null) node.textContent = text;
    return node;
  }

  function signs(text) {
    return text.replace(/ /g, "·").replace(/\r?\n/g, "↵").replace(/\t/g, "→");
  }

  function number(n) { return n.toLocaleString("en"); }

  function many(n, noun) { return number(n) + " " + noun + (n === 1 ? "" : "s"); }

  // [id, piece, word, special], as the server sends it.
  function chip([id, piece, word, special], position, withId) {
    const node = make("span", "chip-token t" + (position % TINTS));
    if (special) node.classList.add("special");
    if (!piece) node.classList.add("part");
    node.append(make("span", "piece", signs(piece) || word || "∅"));
    if (withId) node.append(make("small", "", String(id)));
    node.title = "position " + number(position) + " · id " + id + (special ? " · special token" : "") +
      (piece ? "" : " · a part of a character");
    return node;
  }

  // `ask()` goes to the server, `show(answer)` gets what comes; of several only the last one counts.
  function asking(ask, show) {
    let timer = 0, asked = 0;
    return function (pause) {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const mine = ++asked;
        let told = null;
        try { told = await ask(); } catch (error) { /* said below */ }
        // Without a connection Gradio's call throws, or answers with nothing.
        if (mine === asked) show(told || { error: "The server does not answer; try again in a moment." });
      }, pause);
    };
  }

  function tokenizerRoom(element, server) {
    const part = element.querySelector(".pieces-part"), preview = element.querySelector("#template-preview");
    const special = part.querySelector("#tokenizer-special");
    const text = () => document.querySelector("#tokenizer-input textarea")?.value || "";

    const cut = asking(() => text() ? server.tokenize({ text: text(), special: special.checked }) :
      { tokens: [], count: 0, characters: 0 }, (told) => {
      const list = part.querySelector(".pieces");
      say(part, told);
      list.replaceChildren(...(told.tokens || []).map((token, i) => chip(token, i, true)));
      if (told.count > (told.tokens || []).length) list.append(rest(told));
      part.querySelector(".counts").textContent = !told.count ? "" : many(told.characters, "character") + " · " +
        many(told.count, "token") + " · " + (told.characters / told.count).toFixed(2) + " characters per token";
    });

    const read = asking(() => server.preview({
      document: window.microVLLM.chat?.document?.() || null,
      prompt: document.querySelector("#prompt textarea")?.value || "",
      system: document.querySelector("#system-prompt textarea")?.value || "",
    }), (told) => {
      say(preview, told);
      preview.querySelector(".blocks").replaceChildren(...(told.error ? [] : rows(told)));
      preview.querySelector(".counts").textContent = told.error ? "" : many(told.count, "token") + ", " +
        many(Math.ceil(told.count / told.block_size), "block") + " of " + told.block_size + ".";
    });

    document.addEventListener("input", (event) => {
      if (event.target.closest("#tokenizer-input") || event.target === special) cut(event.target === special ? 0 : PAUSE);
      if (event.target.closest("#system-prompt") && isOpen()) read(PAUSE);
    });
    preview.querySelector("#template-refresh").addEventListener("click", () => read(0));
    window.addEventListener("mv:room", () => { if (isOpen()) { read(0); if (text()) cut(0); } });
  }

  function isOpen() { return document.getElementById("left")?.dataset.room === "tokens"; }

  function say(part, told) {
    const note = part.querySelector(".note");
    note.textContent = told.error || "";
    note.hidden = !told.error;
  }

  function rest(told) {
    return make("span", "rest", "… and " + many(told.count - told.tokens.length, "more token"));
  }

  // One row a block: what stands in it is computed, kept and found again together.
  function rows(told) {
    const found = [];
    for (let start = 0; start < told.tokens.length; start += told.block_size) {
      const row = make("div", "block"), name = make("span", "name", "block " + number(start / told.block_size));
      const size = Math.min(told.block_size, told.count - start);
      if (size < told.block_size) {
        row.classList.add("partial");
        name.append(make("small", "", size + " of " + told.block_size));
      }
      name.title = size < told.block_size ? "not full yet: only full blocks are found again by the prefix cache" :
        "full: a later prompt that begins with the same tokens finds it in the prefix cache";
      const tokens = make("span", "tokens");
      tokens.append(...told.tokens.slice(start, start + told.block_size).map((token, i) => chip(token, start + i, false)));
      row.append(name, tokens);
      found.push(row);
    }
    if (told.count > told.tokens.length) found.push(rest(told));
    return found;
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { tokenizerRoom });
})();
