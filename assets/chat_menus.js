/* The quiet menus above the chat: earlier chats, export and import. */
(function () {
  "use strict";

  const store = window.microVLLM.chatStore, make = window.microVLLM.makeNode, button = window.microVLLM.makeButton;
  const $ = (id) => document.getElementById(id);

  // A button that shows and hides the list it controls: a click elsewhere or Escape hides it again.
  function popup(toggle, fill) {
    const list = $(toggle.getAttribute("aria-controls"));
    const isOpen = () => !list.hidden;
    function set(open) {
      if (open && fill) fill(list, () => set(false));
      list.hidden = !open;
      toggle.setAttribute("aria-expanded", String(open));
    }
    toggle.addEventListener("click", () => set(!isOpen()));
    document.addEventListener("click", (event) => {
      if (isOpen() && event.target.isConnected && !toggle.parentElement.contains(event.target)) set(false);
    });
    toggle.parentElement.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && isOpen()) { event.stopPropagation(); set(false); toggle.focus(); }
    });
    return () => set(false);
  }

  // ---------------------------------------------------------------- earlier chats

  function when(time) {
    const date = new Date(time);
    return isNaN(date) ? "" : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  }

  function fillEarlier(list, close, room) {
    const open = async (one) => {
      const told = await room.ask(one.document);
      if (!told || !told.document) return room.notice("This chat cannot be opened: " + (told ? told.error : "no connection."));
      close();
      room.adopt(told, one.id);
    };
    const others = store.earlier().filter((one) => one.id !== room.chat().id);
    const rows = others.map((one) => {
      const row = make("div", "earlier");
      const reopen = button(one.title, "open this chat again; the one on show is kept", () => open(one));
      reopen.append(make("small", "", when(one.at) + (one.document.mode === "completion" ? " · completion" : "")));
      const remove = button("Delete", "delete this chat from this browser", () => {
        store.forget(one.id);
        fillEarlier(list, close, room);
      });
      remove.setAttribute("aria-label", "delete " + one.title);
      row.append(reopen, remove);
      return row;
    });
    list.replaceChildren(...(rows.length ? rows : [make("p", "none", "None yet: New chat keeps the one before here, in " +
      "this browser only.")]));
  }

  // ---------------------------------------------------------------- files

  async function importFile(file, room) {
    const refuse = (why) => room.notice("“" + file.name + "” cannot be imported: " + why);
    const found = await store.readFile(file);
    if (found.error) return refuse(found.error);
    const told = await room.ask(found.document);
    if (!told || !told.document) return refuse(told ? told.error : "no connection to the server.");
    room.adopt(told);
    room.setSystemPrompt(found.systemPrompt);
  }

  function chatMenus(element, room) {
    popup($("earlier-chats"), (list, close) => fillEarlier(list, close, room));
    const close = popup($("chat-menu"));
    const picker = $("import-chat-file");
    $("export-chat").addEventListener("click", () => { close(); store.exportJson(room.bare(), room.systemPrompt()); });
    $("export-markdown").addEventListener("click", () => { close(); store.exportMarkdown(room.bare()); });
    $("import-chat").addEventListener("click", () => { close(); picker.click(); });
    picker.addEventListener("change", async () => {
      const [file] = picker.files;
      if (file) await importFile(file, room);
      picker.value = "";  // the same file again is a change, too
    });
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chatMenus });
})();
