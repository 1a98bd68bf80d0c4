/* The request, or the token, that this tab follows through all charts, and its card. */
(function () {
  "use strict";

  let focused = null;         // {request, position}
  let card = null, clickedAt = 0;

  function focus(what) {
    const request = what && typeof what.request === "string" && what.request ? what.request : null;
    const position = request && Number.isInteger(what.position) && what.position >= 0 ? what.position : null;
    focused = request ? { request, position } : null;
    if (!focused && card) card.hidden = true;
    window.dispatchEvent(new CustomEvent("mv:focus", { detail: focused }));
    window.microVLLM.pollSoon();
  }

  // A click on a mark follows its request; one beside all marks lets go.
  function focusable(box) {
    let pressed = null;
    box.on("plotly_click", (event) => {
      const found = event.points.map((p) => Array.isArray(p.customdata) ? p.customdata[0] : p.customdata)
        .find((id) => typeof id === "string" && id);
      if (!found) return;
      clickedAt = performance.now();
      focus({ request: found });
    });
    box.addEventListener("pointerdown", (event) => {
      pressed = event.target.closest(".modebar") ? null : { x: event.clientX, y: event.clientY };
    }, true);
    window.addEventListener("pointerup", (event) => {
      const moved = pressed ? Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) : Infinity;
      pressed = null;
      if (moved > 3) return;
      const at = performance.now();
      setTimeout(() => { if (focused && clickedAt < at - 400) focus(null); }, 350);
    }, true);
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !focused || event.defaultPrevented) return;
    // A click on a chart leaves the caret in the prompt; elsewhere Escape belongs to what is being edited.
    const edited = event.target.closest("input:not([type=range]), textarea, select, dialog[open]");
    if (edited && !edited.closest("#prompt")) return;
    focus(null);
  });

  // ---------------------------------------------------------------- the card

  function node(tag, className, text, title) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text != null) made.textContent = text;
    if (title) made.title = title;
    return made;
  }

  function focusCard(element) {
    card = element;
    card.querySelector("#focus-close").addEventListener("click", () => focus(null));
  }

  let shown = "", story = "";

  function show(answer) {
    if (!card) return;
    const told = focused && answer.card && answer.card.request === focused.request ? answer.card : null;
    const isOther = answer.clock && story && answer.clock.story !== story;
    if (answer.clock) story = answer.clock.story;
    if (isOther && told && !told.found) return focus(null);  // it was of an engine, or of a file, that is gone
    card.hidden = !told;
    const text = JSON.stringify(told);
    if (!told || text === shown) return;
    shown = text;
    const head = card.querySelector(".head"), body = card.querySelector(".body");
    if (!told.found) {
      head.replaceChildren(node("b", "", "This request"));
      body.replaceChildren(node("p", "", "is not part of this step, nor of those around it."));
      return;
    }
    head.replaceChildren(node("span", "chip req-" + told.slot, told.label, told.request),
      node("b", "", told.yours ? "yours" : "not yours"), node("span", "state", told.state));
    const numbers = node("dl");
    for (const [name, value, help] of told.numbers) {
      const cell = node("div", "", null, help);
      cell.append(node("dt", "", name), node("dd", "num", value));
      numbers.append(cell);
    }
    body.replaceChildren(numbers, ...told.tables.map((table) => tableRow(table, told.tables.length)));
    if (told.token) body.append(tokenRow(told.token));
  }

  function tableRow(table, count) {
    const row = node("p", "table", null, "logical → physical: which block of the pool holds which block of the request");
    row.append(node("b", "", (count > 1 ? table.name : "block table") + " · " + table.num_blocks + " "));
    for (const [logical, physical] of table.ranges) {
      const range = node("span", "num", logical + "→");
      range.append(node("b", "", physical));
      row.append(range, " ");
    }
    if (!table.ranges.length) row.append(node("span", "", "empty"));
    if (table.more) row.append(node("span", "", "and " + table.more + " more ranges"));
    return row;
  }

  function tokenRow(token) {
    const words = token.words || "block " + token.blocks.join(" and ") + ", slot " + token.slot;
    const row = node("p", "token", null, "where its keys and values are kept");
    row.append(node("b", "", "token " + token.position), ": " + words + " (block " + token.logical + " of the request)");
    return row;
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { focus, focusable, focusCard });
  window.microVLLM.part(() => ({ focus: focused }), show);
})();
