/* Draws a chat: one node a turn, kept for its life; while text streams, only what has changed is touched, so that a
   selection, a scroll position and an open fold outlive every update. Reads the chat, never changes it. */
(function () {
  "use strict";

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (tag === "button") node.type = "button";
    return node;
  }

  function button(text, title, act) {
    const node = make("button", "", text);
    node.title = title;
    node.addEventListener("click", () => act(node));
    return node;
  }

  // ---------------------------------------------------------------- HTML of the server into standing nodes

  const isOwn = (node) => node.nodeType === 1 && node.classList.contains("own");  // put there by this script

  function morph(node, html) {
    if (node.shownHtml === html) return;
    node.shownHtml = html;
    const wanted = document.createElement("template");
    wanted.innerHTML = html;
    morphChildren(node, wanted.content);
    for (const head of node.querySelectorAll(".code-head:not(:has(.own))"))
      head.append(copyButton("Copy code", () => head.parentElement.querySelector("code").textContent, "own"));
  }

  function morphChildren(node, wanted) {
    const mine = [...node.childNodes].filter((child) => !isOwn(child)), theirs = [...wanted.childNodes];
    const end = [...node.childNodes].find(isOwn) || null;
    theirs.forEach((child, i) => {
      const old = mine[i];
      if (!old) node.insertBefore(child, end);
      else if (!old.isEqualNode(child)) morphNode(old, child);
    });
    for (const old of mine.slice(theirs.length)) old.remove();
  }

  function morphNode(old, wanted) {
    if (old.nodeName !== wanted.nodeName) return old.replaceWith(wanted);
    if (old.nodeType !== 1) { old.nodeValue = wanted.nodeValue; return; }
    const stays = (name) => name === "open" && old.touched;  // a fold that its reader has opened or closed
    for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name) && !stays(name)) old.removeAttribute(name);
    for (const { name, value } of wanted.attributes)
      if (old.getAttribute(name) !== value && !stays(name)) old.setAttribute(name, value);
    morphChildren(old, wanted);
  }

  // ---------------------------------------------------------------- copying

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return true; } catch (error) { /* not allowed here: the old way */ }
    const box = make("textarea");
    box.value = text;
    box.style.cssText = "position:fixed;opacity:0";
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }

  function copyButton(title, text, className) {
    const node = button("Copy", title, async () => {
      node.textContent = (await copy(text())) ? "Copied" : "Not copied";
      setTimeout(() => { node.textContent = "Copy"; }, 1500);
    });
    node.setAttribute("aria-live", "polite");
    if (className) node.className = className;
    return node;
  }

  // ---------------------------------------------------------------- one turn

  function shownVersion(turn) { return turn.role === "user" ? turn : turn.versions[turn.shown]; }

  // `acts`: what the buttons do, each called with the turn.
  function turnNode(turn, acts) {
    const isBot = turn.role !== "user";
    const node = make("article", "turn " + (isBot ? "bot" : "user"));
    const message = make("div", "message " + (isBot ? "bot" : "user")), body = make("div", "body");
    message.append(body);
    node.parts = { message, body };
    if (isBot) {
      node.parts.slot = make("div", "strip-slot");
      node.parts.meta = make("div", "meta");
      message.append(node.parts.slot, node.parts.meta);
    }
    const actions = make("div", "actions");
    if (isBot) {
      const older = button("‹", "the answer before", () => acts.show(turn, -1));
      const newer = button("›", "the next answer", () => acts.show(turn, 1));
      older.setAttribute("aria-label", "the answer before");
      newer.setAttribute("aria-label", "the next answer");
      const versions = make("span", "versions"), count = make("span", "num");
      versions.append(older, count, newer);
      actions.append(versions);
      Object.assign(node.parts, { versions, count, older, newer });
    }
    node.parts.edit = button("Edit", isBot ? "change this answer; the chat goes on from your text" : "change this prompt",
      () => openEditor(node, turn, acts));
    actions.append(copyButton("copy as it was written, Markdown and all", () => shownVersion(turn).text), node.parts.edit);
    if (isBot) {
      node.parts.tokens = button("Tokens", "the tokens of this answer, and what else was likely", () => acts.tokens(turn));
      actions.append(node.parts.tokens);
    }
    node.append(message, actions);
    node.addEventListener("click", ({ target }) => {
      const chip = target.closest(".chip"), summary = target.closest("summary");
      if (chip) acts.focus(chip.dataset.request);
      if (summary) summary.parentElement.touched = true;  // at once: "toggle" comes later, an update may come before it
    });
    return node;
  }

  function update(node, turn, state) {
    const version = shownVersion(turn), { message, body } = node.parts;
    const raw = version.html === undefined;  // the server has not rendered it yet
    body.classList.toggle("raw", raw);
    if (raw) { body.textContent = version.text; body.shownHtml = undefined; }
    else morph(body, version.html);
    const name = (turn.role === "user" ? "prompt " : "answer ") + state.number;
    if (node.getAttribute("aria-label") !== name) node.setAttribute("aria-label", name);
    node.classList.toggle("last", state.isLast);
    node.parts.edit.disabled = state.isWriting;
    if (turn.role === "user") return;
    message.classList.toggle("writing", state.isWriting);
    morph(node.parts.meta, version.meta === undefined ? "…" : version.meta);
    const count = turn.versions.length;
    node.parts.versions.hidden = count < 2;
    node.parts.count.textContent = (turn.shown + 1) + " / " + count;
    node.parts.older.disabled = state.isWriting || turn.shown === 0;
    node.parts.newer.disabled = state.isWriting || turn.shown === count - 1;
    node.parts.tokens.hidden = !version.request_id || Boolean(version.is_edited) || !window.microVLLM.tokens;
  }

  // ---------------------------------------------------------------- editing in place

  function openEditor(node, turn, acts) {
    if (node.querySelector(".editor")) return;
    const editor = make("div", "editor"), box = make("textarea"), row = make("div", "editor-buttons");
    const isUser = turn.role === "user";
    box.value = shownVersion(turn).text;
    box.setAttribute("aria-label", isUser ? "edit the prompt" : "edit the answer");
    const question = make("p", "question");
    question.setAttribute("role", "alert");
    question.hidden = true;
    const close = () => { editor.remove(); node.classList.remove("editing"); node.parts.edit.focus(); };
    const save = button("Save", "later messages stay", () => { if (acts.edit(turn, box.value)) close(); });
    save.classList.add("primary");
    row.append(save);
    if (isUser) {
      const again = button("Save and answer again", "the model answers your new text", () => {
        const lost = acts.later(turn);
        if (lost && question.hidden) {
          question.textContent = "The " + lost + " later message" + (lost === 1 ? "" : "s") + " will leave this chat; the " +
            "chat as it is now is kept under Earlier chats.";
          question.hidden = false;
          again.textContent = "Yes, answer again";
        } else if (acts.answerAgain(turn, box.value)) close();
      });
      row.append(again);
    }
    row.append(button("Cancel", "leave it as it was (Escape)", close));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save.click();
    });
    const fit = () => { box.style.height = "auto"; box.style.height = Math.min(box.scrollHeight + 2, 360) + "px"; };
    box.addEventListener("input", fit);
    editor.append(box, question, row);
    node.classList.add("editing");
    node.prepend(editor);
    fit();
    box.focus();
  }

  // ---------------------------------------------------------------- the whole chat

  // `sync(chat, writing)` brings the log into line with the chat; `writing` is the turn that is being written, if any.
  function chatView(log, acts) {
    const nodes = new WeakMap();  // turn -> node
    let welcome = null;

    function sync(chat, writing) {
      log.dataset.mode = chat.mode;
      log.setAttribute("aria-busy", String(Boolean(writing)));
      greet(chat.turns.length ? null : chat.mode);
      let at = welcome ? welcome.nextSibling : log.firstChild, prompts = 0, answers = 0;
      for (const turn of chat.turns) {
        let node = nodes.get(turn);
        if (!node) nodes.set(turn, node = turnNode(turn, acts));
        if (node !== at) log.insertBefore(node, at);
        else at = at.nextSibling;
        const number = turn.role === "user" ? ++prompts : ++answers;
        update(node, turn, { number, isLast: turn === chat.turns[chat.turns.length - 1], isWriting: turn === writing });
      }
      while (at) { const next = at.nextSibling; at.remove(); at = next; }
    }

    function greet(mode) {
      if (welcome && welcome.dataset.mode === mode) return;
      if (welcome) welcome.remove();
      welcome = null;
      if (!mode) return;
      const template = log.parentElement.querySelector('template[data-for="' + mode + '"]');
      welcome = template.content.firstElementChild.cloneNode(true);
      welcome.dataset.mode = mode;
      for (const example of welcome.querySelectorAll(".example"))
        example.addEventListener("click", () => acts.send(example.dataset.text));
      log.prepend(welcome);
    }

    function slot(turn) { const node = nodes.get(turn); return node && node.parts.slot; }

    return { sync, slot };
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chatView, makeNode: make, makeButton: button });
})();
