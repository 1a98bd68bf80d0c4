/* Cards of runs: many small ones in the workload room, two large ones side by side in the compare room. The server
   (ui/runs) says what changed; here it is put on the page, and what grows is followed unless its reader scrolled up. */
(function () {
  "use strict";

  const rooms = new Map();   // name -> {root, settle, run, version, live, cards}
  const STATUS = { queued: ["…", "waits"], reading: ["▸", "reads"], writing: ["▸", "writes"],
    preempted: ["↺", "pushed out"], done: ["✓", "done"], stopped: ["■", "stopped"], failed: ["✕", "failed"],
    refused: ["✕", "not sent"] };
  const ENDINGS = { stop: "finished", length: "cut at its length limit" };

  function el(tag, cls, text) {
    const node = document.createElement(tag);
    if (cls) node.className = cls;
    if (text != null) node.textContent = text;
    return node;
  }

  function count(number, noun) {
    return number.toLocaleString("en") + " " + noun + (number === 1 ? "" : "s");
  }

  // ---------------------------------------------------------------- the pane

  function shownRoom() {
    const left = document.getElementById("left");
    return rooms.get(left && left.dataset.room);
  }

  function ask() {
    const room = shownRoom();
    return room ? { room: room.name, run: room.run, version: room.version } : null;
  }

  function show(told) {
    const room = rooms.get(told.room);
    if (!room) return;
    if (told.run !== room.run) begin(room, told);
    room.version = told.version;
    for (const change of told.cards) paint(room, room.cards[change.i], change);
    room.tell(room, told);
    if (told.live !== room.live) {
      room.live = told.live;
      room.root.dataset.live = String(told.live);
      room.settle();  // which buttons can be pressed is the server's word
      say(room, told);
    }
  }

  function say(room, told) {
    const sum = told.sum;
    part(room, "said").textContent = told.live ? count(sum.total, "request") + " started"
      : sum.done + " of " + count(sum.total, "answer") + " finished";
  }

  function part(room, name) {
    return room.root.querySelector('[data-run="' + name + '"]');
  }

  // A new run: as many cards as it has, those that are there are used again.
  function begin(room, told) {
    room.run = room.root.dataset.run = told.run;
    room.live = null;
    const grid = part(room, "grid");
    while (room.makes && grid.children.length > told.size) grid.lastElementChild.remove();
    while (room.makes && grid.children.length < told.size) grid.append(room.makes(grid.children.length));
    room.cards = [...grid.children].map(card);
    for (const one of room.cards) {
      one.text.textContent = "";
      one.end.follow();
      one.cached = null;
    }
    grid.scrollTop = 0;
    part(room, "tokens")?.replaceChildren();  // those of an answer that is gone
  }

  // ---------------------------------------------------------------- one card

  const made = new WeakMap();   // node -> {node, chip, label, ..., end}

  function card(node) {
    if (made.has(node)) return made.get(node);
    const one = { node, cached: null };
    for (const name of ["chip", "label", "prompt", "status", "text", "facts"])
      one[name] = node.querySelector('[data-card="' + name + '"]');
    one.end = window.microVLLM.keepAtEnd(one.text);
    made.set(node, one);
    return one;
  }

  function smallCard(index) {
    const node = el("div", "mv-run-card");
    node.setAttribute("role", "listitem");
    const head = el("header");
    const names = [["span", "chip"], ["b", "label"], ["span", "prompt"], ["span", "status"]];
    for (const [tag, name] of names) head.append(marked(el(tag), name));
    const text = marked(el("div", "mv-run-text"), "text");
    text.tabIndex = 0;
    text.setAttribute("role", "group");
    text.setAttribute("aria-label", "answer " + (index + 1));
    node.append(head, text, marked(el("p", "mv-facts"), "facts"));
    return node;
  }

  function marked(node, name) {
    node.dataset.card = name;
    if (name === "status") node.className = "mv-status";
    return node;
  }

  function paint(room, one, change) {
    if (!one) return;
    if (change.label != null) {
      one.label.textContent = change.label;
      one.label.title = change.label;
    }
    if (change.prompt != null && one.prompt) {
      one.prompt.textContent = change.prompt;
      one.prompt.title = change.prompt;
    }
    if (change.prompt != null && !one.prompt) showPrompt(room, change.prompt);
    chip(room, one, change);
    const [sign, words] = STATUS[change.status] || ["", change.status];
    one.node.dataset.status = change.status;
    one.status.textContent = sign + " " + words;
    one.status.title = change.reason || "";
    one.cached = change.facts.cached;
    facts(one, change);
    grow(one, change);
  }

  function showPrompt(room, prompt) {
    const node = part(room, "prompt");
    node.hidden = false;
    node.textContent = prompt;
    node.title = prompt;
  }

  // The letter and colour of the charts; a press follows the request there.
  function chip(room, one, change) {
    const key = change.chip ? change.chip[0] + change.request : "";
    if (one.chip.dataset.key === key) return;
    one.chip.dataset.key = key;
    one.chip.replaceChildren();
    if (!change.chip) return;
    const button = el("button", "chip req-" + change.chip[1], change.chip[0]);
    button.type = "button";
    button.dataset.request = change.request;
    const does = "follow request " + change.chip[0] + " in the charts" + (part(room, "tokens") ? ", and show its tokens" : "");
    button.title = does;
    button.setAttribute("aria-label", does);
    button.addEventListener("click", () => {
      if (window.microVLLM.focus) window.microVLLM.focus({ request: change.request });
      const slot = part(room, "tokens");
      if (slot && window.microVLLM.tokens) window.microVLLM.tokens.show(change.request, slot);
    });
    one.chip.append(button);
  }

  function grow(one, change) {
    const text = one.text;
    if (change.html != null) {
      // A thought that was opened or folded stays so.
      const open = [...text.querySelectorAll("details")].map((node) => node.open);
      text.innerHTML = change.html;  // the server's own, from ui.render
      text.querySelectorAll("details").forEach((node, i) => { if (i in open) node.open = open[i]; });
    } else if (change.add != null) {
      text.textContent = text.textContent.slice(0, change.at) + change.add;
    } else return;
    one.end.toEnd();
  }

  // ---------------------------------------------------------------- words

  function facts(one, change) {
    const f = change.facts, parts = [];
    if (change.status === "refused" || change.status === "failed" || change.status === "stopped")
      parts.push([change.reason || change.status, ""]);
    if (change.status !== "refused") {
      if (f.ttft != null) parts.push(["TTFT " + (f.ttft < 1 ? Math.round(f.ttft * 1000) + " ms" : f.ttft.toFixed(1) +
        " s"), "time to first token"]);
      if (f.tokens) parts.push([count(f.tokens, "token"), "written so far"]);
      if (f.rate) parts.push([Math.round(f.rate) + " tok/s", "tokens a second after the first"]);
      if (f.cached == null) parts.push([count(f.prompt, "prompt token"), "of the prompt, after the chat template"]);
      else parts.push([f.cached + " of " + f.prompt + " cached",
        "prompt tokens that came from the prefix cache and were not computed again"]);
      if (f.preempted) parts.push(["preempted " + f.preempted + " ×",
        "pushed out for lack of blocks, and computed again later"]);
      if (ENDINGS[f.end]) parts.push([ENDINGS[f.end], "finish reason: " + f.end]);
    }
    const nodes = [];
    for (const [words, title] of parts) {
      if (nodes.length) nodes.push(" · ");
      const node = el("span", "", words);
      if (title) node.title = title;
      nodes.push(node);
    }
    one.facts.replaceChildren(...nodes);
    one.facts.title = parts.map(([words]) => words).join(" · ");
  }

  function share(part, whole) {
    return whole ? Math.round((100 * part) / whole) + " %" : "–";
  }

  function tellWorkload(room, told) {
    const sum = told.sum, parts = [];
    if (told.live) {
      if (sum.paused) parts.push("the engine is paused");
      parts.push(sum.running + " running", sum.waiting + " waiting" + (sum.unsent ? " (" + sum.unsent + " here)" : ""), sum.done + "/" + sum.total + " done");
    } else {
      parts.push(sum.done + " of " + sum.total + " in " + sum.seconds.toFixed(1) + " s", count(sum.tokens, "token"));
    }
    parts.push(Math.round(sum.rate) + " tok/s", share(sum.cached, sum.prompt) + " cached",
      count(sum.preempted, "preemption"));
    part(room, "sum").textContent = part(room, "sum").title = parts.join(" · ");
    part(room, "note").textContent = told.note;
  }

  // How the two shared the engine, in words that hold for this run: from the trace, not from a rule.
  function tellCompare(room, told) {
    const pair = told.pair, parts = [], node = part(room, "sum");
    const cached = room.cards.map((one) => one.cached);
    if (pair.steps) parts.push("Computed together in " + pair.together + " of " + count(pair.steps, "step") + ".");
    const [a, b] = pair.began;
    if (a != null && a === b) {
      const from = "Both prompts were read from step " + a + " on";
      parts.push(cached[0] || cached[1] ? from + "; what they had cached was there before."
        : from + ", so neither found the other's blocks in the prefix cache: a block can be found once a step has " +
          "filled it.");
    } else if (a != null && b != null && cached[1]) {
      parts.push("B began in step " + b + ", after A in step " + a + ", and found " + cached[1] +
        " prompt tokens in the prefix cache.");
    }
    if (pair.part) parts.push(pair.part.same ? "The same for " + count(pair.part.same, "token") + ", then"
      : "They part at the first token:");
    node.textContent = parts.join(" ") || "Both wait for their turn.";
    if (!pair.part) return;
    const [one, two] = pair.part.pieces;
    node.append(" A ", el("code", "", visible(one)), " and B ", el("code", "", visible(two)), ".");
  }

  function visible(piece) {
    return piece.replace(/\n/g, "⏎").replace(/^ /, "␣").replace(/\t/g, "⇥") || "∅";
  }

  // ---------------------------------------------------------------- start

  function cards(element, name, settle) {
    const root = element.querySelector(".mv-run, .mv-pair");
    const room = { name, root, settle, run: "", version: 0, live: null, cards: [] };
    room.makes = name === "workload" ? smallCard : null;
    room.tell = name === "workload" ? tellWorkload : tellCompare;
    if (!rooms.size) {
      window.microVLLM.pane("cards", ask, show);
      window.addEventListener("mv:room", () => window.microVLLM.pollSoon());
    }
    rooms.set(name, room);
    for (const id of name === "workload" ? ["workload"] : ["compare-a-preset", "compare-b-preset"]) radios(id);
  }

  // Gradio gives every radio button a name of its own, and a new one when it changes: then arrow keys do not go from
  // one to the next.
  function radios(id) {
    const group = document.getElementById(id);
    if (!group) return void requestAnimationFrame(() => radios(id));
    const join = () => {
      for (const button of group.querySelectorAll("input[type=radio]"))
        if (button.name !== "mv-" + id) button.name = "mv-" + id;
    };
    join();
    new MutationObserver(join).observe(group, { subtree: true, childList: true, attributeFilter: ["name"] });
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { cards });
})();
