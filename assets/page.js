/* What the page does by itself, without the engine: light and dark, folds, tooltips, and a chat that follows what is
   written unless its reader has scrolled up. */
(function () {
  "use strict";

  function whenThere(selector, then) {
    const node = document.querySelector(selector);
    if (node) then(node);
    else requestAnimationFrame(() => whenThere(selector, then));
  }

  // As if it had been typed: Gradio takes notice of it.
  function setText(field, text) {
    if (!field) return;
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
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
    whenThere("#" + toggle, (button) => {
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
    for (const [id, text] of Object.entries(texts)) whenThere("#" + id, (node) => {
      node.title = text;
      const field = node.querySelector("input, textarea");
      if (field) field.setAttribute("aria-description", text);
    });
  }

  // ---------------------------------------------------------------- what is written is followed

  // Keeps the end of what grows in `box` in view, unless its reader has moved up; `follow` takes that back.
  // Gradio's own scrolling takes effect 300 ms after it was decided, and pulls a reader down who has moved since.
  function keepAtEnd(box) {
    let stays = true, top = 0, height = 0;
    const isAtEnd = () => box.scrollHeight - box.scrollTop - box.clientHeight < 4;

    function notice() {
      if (box.scrollTop < top && box.scrollHeight >= height) stays = false;  // else there is less in it than before
      else if (isAtEnd()) stays = true;
      [top, height] = [box.scrollTop, box.scrollHeight];
    }

    // The wheel says so before anything has moved, and to set scrollTop would stop what it has begun to move.
    box.addEventListener("wheel", ({ deltaY }) => { if (deltaY < 0 && box.scrollTop > 0) stays = false; }, { passive: true });
    box.addEventListener("scroll", notice, { passive: true });
    return {
      follow() { stays = true; top = height = 0; },
      toEnd() {
        notice();  // the reader may have moved, and the browser not said so yet
        if (!stays || isAtEnd()) return;
        box.scrollTop = box.scrollHeight;
        top = box.scrollTop;
      },
    };
  }

  function followChat() {
    whenThere("#chat .log", (log) => {
      const end = keepAtEnd(log), chat = log.closest("#chat");
      let prompts = 0;
      const toEnd = () => { if (prompts) end.toEnd(); };  // a welcome is read from its top
      new MutationObserver(() => {
        const count = log.querySelectorAll(".message.user").length;
        if (count > prompts) end.follow();  // who sends something wants to see what comes
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

  window.microVLLM = Object.assign(window.microVLLM || {}, { room, rooms, look, fold, tooltips, followChat, keepAtEnd,
    whenThere, setText });
})();
