/* Save what is on show as a file, open one that was saved, by button or by dropping it on the charts. */
(function () {
  "use strict";

  let find = null;

  // A page that has just been opened gets its token a moment later.
  async function headers(more) {
    for (let i = 0; i < 50 && !window.microVLLM.viewer(); i++) await new Promise((then) => setTimeout(then, 100));
    return Object.assign({ "X-Viewer": window.microVLLM.viewer() }, more);
  }

  async function words(reply) {
    const told = await reply.json().catch(() => null);
    return (told && told.error) || "The server answered with status " + reply.status + ".";
  }

  function complain(text) {
    const note = find("#trace-error");
    find("#trace-error .words").textContent = text;
    note.hidden = false;
  }

  function close(menu) { if (menu.open) menu.open = false; }

  // Also for the event table: POST a question, hand the answer to the browser as a file.
  async function download(path, asked, name) {
    find("#trace-error").hidden = true;
    try {
      const reply = await fetch(path, { method: "POST", headers: await headers({ "Content-Type": "application/json" }),
        body: JSON.stringify(Object.assign({ source: window.microVLLM.source() }, asked)) });
      if (!reply.ok) return complain(await words(reply));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await reply.blob());
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (error) {
      complain("No connection to the server; nothing was saved.");
    }
  }

  async function open(file) {
    find("#trace-error").hidden = true;
    window.microVLLM.sayClock("opening " + file.name);
    find("#trace-menu > summary").dataset.busy = "";
    try {
      const reply = await fetch("trace/open", { method: "POST", body: file,
        headers: await headers({ "X-File-Name": encodeURIComponent(file.name) }) });
      if (!reply.ok) return complain(await words(reply));
      window.microVLLM.sayClock("opened " + (await reply.json()).title);
      window.microVLLM.lookAt("file");
    } catch (error) {
      complain("No connection to the server; " + file.name + " was not opened.");
    } finally {
      delete find("#trace-menu > summary").dataset.busy;
    }
  }

  async function closeTrace() {
    window.microVLLM.lookAt("live");
    await fetch("trace/close", { method: "POST", headers: await headers() }).catch(() => null);
  }

  function acceptDrops(target) {
    const hasFile = (event) => [...(event.dataTransfer ? event.dataTransfer.types : [])].includes("Files");
    let depth = 0;
    const leave = () => { depth = 0; target.classList.remove("mv-drop"); };
    target.addEventListener("dragenter", (event) => {
      if (!hasFile(event)) return;
      depth += 1;
      target.classList.add("mv-drop");
    });
    target.addEventListener("dragleave", () => { if (--depth <= 0) leave(); });
    target.addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
    target.addEventListener("drop", (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      leave();
      if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
    });
  }

  function start(element) {
    find = (selector) => element.querySelector(selector);
    const menu = find("#trace-menu"), file = find("#open-trace");
    find("#save-trace").addEventListener("click", () => { close(menu); download("trace/save", { format: "jsonl" }, "trace.jsonl"); });
    find("#save-perfetto").addEventListener("click", () => { close(menu); download("trace/save", { format: "perfetto" }, "trace.perfetto.json"); });
    find("#close-trace").addEventListener("click", closeTrace);
    find("#trace-error button").addEventListener("click", () => { find("#trace-error").hidden = true; });
    file.addEventListener("change", () => {
      close(menu);
      if (file.files.length) open(file.files[0]);
      file.value = "";  // the same file may be opened again
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !menu.open) return;
      event.stopPropagation();
      close(menu);
      menu.querySelector("summary").focus();
    });
    document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) close(menu); });
    acceptDrops(document.getElementById("right"));
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { traceFiles: start, download });
})();
