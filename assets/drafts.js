/* What was typed into the other rooms is there again when this tab is loaded anew; the chat keeps its own (chat.js). */
(function () {
  "use strict";

  const KEY = "mv-drafts", SAVE_AFTER = 400;
  const FIELDS = ["compare-prompt", "compare-a-system-prompt", "compare-b-system-prompt", "workload-lines", "tokenizer-input"];
  const { whenThere, setText } = window.microVLLM;

  let timer = 0, missing = FIELDS.length;

  function kept() {
    try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch (error) { return {}; }
  }

  const field = (id) => document.querySelector("#" + id + " textarea");

  function save() {
    clearTimeout(timer);
    timer = 0;
    if (missing) return;  // what is kept of the others is not back in its place yet
    const typed = FIELDS.map((id) => [id, field(id).value]);
    try { sessionStorage.setItem(KEY, JSON.stringify(Object.fromEntries(typed))); }
    catch (error) { /* storage is full or not allowed here */ }
  }

  function keepDrafts() {
    const before = kept();
    for (const id of FIELDS) whenThere("#" + id + " textarea", (box) => {
      if (typeof before[id] === "string" && before[id] && !box.value) setText(box, before[id]);
      box.addEventListener("input", () => { if (!timer) timer = setTimeout(save, SAVE_AFTER); });
      missing -= 1;
    });
    window.addEventListener("pagehide", save);
  }

  window.microVLLM = Object.assign(window.microVLLM, { keepDrafts });
})();
