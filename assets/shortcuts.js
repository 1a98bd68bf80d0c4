/* Keyboard shortcuts, after the table of ui/help_sheet.py, and the sheet that shows them. */
(function () {
  "use strict";

  const KEPT = "mv-shortcuts";

  function isTyping(target) {
    return target.isContentEditable || target.matches("input, textarea, select, [role=listbox], [role=slider]");
  }

  function act({ target, does }) {
    if (target.startsWith("room:")) return window.microVLLM.room(target.slice(5));
    const node = document.getElementById(target);
    if (!node) return;
    if (does === "click") {
      const button = node.matches("button, [role=button]") ? node : node.querySelector("button") || node;
      if (!button.disabled) button.click();
    } else {
      window.microVLLM.room("chat");
      (node.querySelector("textarea, input") || node).focus();
    }
  }

  function shortcuts(element, keys) {
    const sheet = element.querySelector("dialog"), isOn = element.querySelector("#shortcuts-on");
    try { isOn.checked = localStorage.getItem(KEPT) !== "off"; } catch (error) { /* storage is not allowed here */ }
    isOn.addEventListener("change", () => {
      try { localStorage.setItem(KEPT, isOn.checked ? "on" : "off"); } catch (error) { /* so it holds until a reload */ }
    });
    document.getElementById("help-toggle").addEventListener("click", () => sheet.open ? sheet.close() : sheet.showModal());
    sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && event.target.closest?.("#prompt")) event.target.blur();
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (sheet.open ? event.key !== "?" : !isOn.checked && event.key !== "?") return;
      if (!Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      act(keys[event.key]);
    });
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { shortcuts });
})();
