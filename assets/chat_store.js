/* Chats in the browser: this tab's in sessionStorage, so that no other tab sees it; earlier ones, bounded, in
   localStorage; files out and in. Storage may be full, forbidden or full of nonsense: nothing here ever throws. */
(function () {
  "use strict";

  const FORMAT = "micro-vllm-chat", VERSION = 1;
  const CURRENT = "mv-chat", EARLIER = "mv-earlier-chats";
  const MAX_EARLIER = 30, MAX_TITLE = 70, MAX_FILE = 8 * 1024 * 1024;
  const KEPT = ["text", "num_kept", "model_key", "request_id", "facts", "is_edited", "note"];

  function read(name, key) {
    try { return JSON.parse(window[name].getItem(key)); } catch (error) { return null; }
  }

  function write(name, key, value) {
    try { window[name].setItem(key, JSON.stringify(value)); return true; } catch (error) { return false; }
  }

  // ---------------------------------------------------------------- documents

  function idsOf(version) {
    const ids = version.token_ids;
    if (typeof ids === "string") return ids ? ids.split(" ").map(Number) : [];
    return Array.isArray(ids) ? ids : [];
  }

  // What the server reads: no HTML, which it makes itself.
  function bare(chat, turns) {
    return { format: FORMAT, version: VERSION, mode: chat.mode, turns: (turns || chat.turns).map((turn) => {
      if (turn.role === "user") return { role: "user", text: turn.text };
      return { role: "assistant", shown: turn.shown, versions: turn.versions.map((version) => {
        const kept = { token_ids: idsOf(version) };
        for (const name of KEPT) if (version[name] !== undefined) kept[name] = version[name];
        return kept;
      }) };
    }) };
  }

  function withoutIds(stored) {
    return Object.assign({}, stored, { turns: stored.turns.map((turn) => turn.role === "user" ? turn
      : Object.assign({}, turn, { versions: turn.versions.map((v) => Object.assign({}, v, { token_ids: [] })) })) });
  }

  // From storage: enough of a chat to be shown; the server checks the rest.
  function readable(stored) {
    if (!stored || stored.format !== FORMAT || stored.version !== VERSION || !Array.isArray(stored.turns)) return null;
    const isText = (one) => one && typeof one.text === "string";
    const sound = stored.turns.every((turn) => turn && (turn.role === "user" ? isText(turn)
      : turn.role === "assistant" && Array.isArray(turn.versions) && turn.versions.every(isText) &&
        turn.versions[turn.shown] !== undefined));
    return sound && (stored.mode === "chat" || stored.mode === "completion") ? stored : null;
  }

  // ---------------------------------------------------------------- this tab's chat

  function saveCurrent(stored) {
    return write("sessionStorage", CURRENT, stored) || write("sessionStorage", CURRENT, withoutIds(stored));
  }

  function current() { return readable(read("sessionStorage", CURRENT)); }

  // ---------------------------------------------------------------- earlier chats

  function earlier() {
    const list = read("localStorage", EARLIER);
    return (Array.isArray(list) ? list : []).filter((one) => one && typeof one.id === "string" && readable(one.document));
  }

  function keep(id, document_) {
    const others = earlier().filter((one) => one.id !== id);
    const list = [{ id, title: title(document_), at: Date.now(), document: document_ }, ...others].slice(0, MAX_EARLIER);
    while (list.length && !write("localStorage", EARLIER, list)) list.pop();  // full: the oldest go
  }

  function forget(id) { write("localStorage", EARLIER, earlier().filter((one) => one.id !== id)); }

  function title(document_) {
    const first = document_.turns.find((turn) => turn.role === "user");
    const words = (first ? first.text : "").split(/\s+/).join(" ").trim();
    return words.length > MAX_TITLE ? words.slice(0, MAX_TITLE) + "…" : words || "(no prompt)";
  }

  // ---------------------------------------------------------------- files

  function download(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function fileName(ending) {
    return "chat-" + new Date().toISOString().slice(0, 16).replace(/[:T]/g, "-") + ending;
  }

  function exportJson(document_, systemPrompt) {
    const all = Object.assign({}, document_, { exported: new Date().toISOString(), system_prompt: systemPrompt });
    download(fileName(".json"), "application/json", JSON.stringify(all, null, 1));
  }

  function markdown(document_) {
    if (document_.mode === "completion")
      return document_.turns.map((t) => t.role === "user" ? t.text : t.versions[t.shown].text).join("");
    return document_.turns.map((turn) => turn.role === "user" ? "## Prompt\n\n" + turn.text
      : "## Answer\n\n" + turn.versions[turn.shown].text).join("\n\n") + "\n";
  }

  function exportMarkdown(document_) { download(fileName(".md"), "text/markdown", markdown(document_)); }

  // The document in a file, or an error in words.
  async function readFile(file) {
    if (file.size > MAX_FILE) return { error: "it has " + file.size.toLocaleString("en") + " bytes; a chat has at most " +
      MAX_FILE.toLocaleString("en") + "." };
    let found = null;
    try { found = JSON.parse(await file.text()); } catch (error) { return { error: "it is not JSON." }; }
    if (!found || found.format !== FORMAT) return { error: "it is no chat that was exported here." };
    return { document: found, systemPrompt: typeof found.system_prompt === "string" ? found.system_prompt : "" };
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chatStore: { bare, idsOf, saveCurrent, current, earlier, keep,
    forget, title, exportJson, exportMarkdown, readFile } });
})();
