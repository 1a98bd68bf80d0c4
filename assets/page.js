/* What the page does by itself, without the engine: light and dark, folds, tooltips, and a chat that follows what is
   written unless its reader has scrolled up. */
(function () {
  "use strict";

  function whenThere(id, then) {
    const node = document.getElementById(id);
    if (node) then(node);
    else requestAnimationFrame(() => whenThere(id, then));
  }

  // ---------------------------------------------------------------- light and dark

  // The choice is kept. Gradio follows the system, or an address with __theme; it has its say before.
  function keptLook() {
    try { return location.search.includes("__theme=") ? null : localStorage.getItem("mv-theme"); }
    catch (error) { return null; }
  }

  function keepLook(name) {
    try { localStorage.setItem("mv-theme", name); } catch (error) { /* storage is not allowed here */ }
  }

  function look(button, changed) {
    const body = document.body;
    if (keptLook()) body.classList.toggle("dark", keptLook() === "dark");
    button.addEventListener("click", () => {
      keepLook(body.classList.toggle("dark") ? "dark" : "light");
    });
    // Also when the system changes its mind while the page is open.
    new MutationObserver(changed).observe(body, { attributes: true, attributeFilter: ["class"] });
  }

  // ---------------------------------------------------------------- folds and tooltips

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

  // ---------------------------------------------------------------- the chat follows what is written

  // Gradio's own scrolling takes effect 300 ms after it was decided, and pulls a reader down who has scrolled up since.
  function follow(id) {
    whenThere(id, (chat) => {
      let stays = true, top = 0, prompts = 0;
      const box = () => chat.querySelector(".log");
      const isAtEnd = (node) => node.scrollHeight - node.scrollTop - node.clientHeight < 4;

      function toEnd() {
        const node = box();
        if (node && stays && prompts && !isAtEnd(node)) node.scrollTop = node.scrollHeight;  // a welcome is read from its top
      }

      chat.addEventListener("scroll", ({ target }) => {
        if (target !== box()) return;
        if (isAtEnd(target)) stays = true;
        else if (target.scrollTop < top) stays = false;
        top = target.scrollTop;
      }, true);

      new MutationObserver(() => {
        const count = chat.querySelectorAll(".message.user").length;
        if (count > prompts) stays = true;  // who sends something wants to see what comes
        prompts = count;
        toEnd();
      }).observe(chat, { childList: true, subtree: true, characterData: true });
      new ResizeObserver(toEnd).observe(chat);  // a fold was opened below it
    });
  }

  // ---------------------------------------------------------------- rooms

  // Every room is on the page from the start; the left half says which one is shown.
  function room(name) {
    document.getElementById("left").dataset.room = name;
    for (const button of document.querySelectorAll(".mv-rooms button"))
      button.setAttribute("aria-pressed", String(button.dataset.room === name));
    window.dispatchEvent(new CustomEvent("mv:room", { detail: name }));
  }

  function rooms(header) {
    for (const button of header.querySelectorAll(".mv-rooms button"))
      button.addEventListener("click", () => room(button.dataset.room));
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { room, rooms, look, fold, tooltips, follow });
})();
