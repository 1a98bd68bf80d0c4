/* One answer at a time: asks the server for it, takes what comes, notices when nothing comes any more. A run is one press
   of Send, Retry or Continue. */
(function () {
  "use strict";

  const WATCH_EVERY = 1000;
  const SILENT = 6000;      // the server gives a sign of life every second; after this long it is asked
  const GIVEN_UP = 25000;

  function randomId() { return Math.random().toString(36).slice(2) + Math.random().toString(36).slice(2); }

  function shown(turn) { return turn.versions[turn.shown]; }

  // `room`: chat() with its turns, sync(), save(), showTokens(turn), notice(words), backIntoBox(text), and
  // trigger(event, data) with the names of the events `answer` and `halt`.
  function chatRuns(room) {
    const ended = new Set();
    let run = null;

    // The turns as they are, for the case that a question is refused: turns and versions are replaced, never changed.
    function snapshot() { return room.chat().turns.map((turn) => ({ turn, copy: Object.assign({}, turn) })); }

    function putBack(before) { room.chat().turns = before.map(({ turn, copy }) => Object.assign(turn, copy)); }

    // `asked` is what the server gets beside the run's name; `turn` gets the answer, in the version that it shows;
    // `before` is a snapshot, and `typed` what was in the box.
    function begin(asked, turn, before, typed) {
      run = { id: randomId(), turn, version: shown(turn), before, typed: typed || "", begun: Date.now(), heard: 0,
        isSent: false, isStopped: false, strip: "" };
      run.version.meta = "…";
      room.sync();
      room.trigger(room.events.answer, Object.assign({ run: run.id }, asked));
      watch();
    }

    function halt() { room.trigger(room.events.halt, { run: run.id }); }

    function stop() {
      if (!run) return;
      run.isStopped = true;
      if (run.heard) halt();  // or else with the first sign of life
      room.sync();
    }

    // ---------------------------------------------------------------- what comes

    function take(update) {
      if (!update) return;
      if (!run || update.run !== run.id) return left(update);
      const isFirst = !run.heard;
      run.heard = Date.now();
      if (isFirst && run.isStopped) halt();
      if (update.state === "refused") return takeBack();
      if (update.answer) {
        run.isSent = true;
        Object.assign(run.version, update.answer, { html: update.html });
      }
      run.version.meta = update.meta;
      const { turn, version } = run, isDone = update.state === "done", isNew = version.request_id !== run.strip;
      run.strip = version.request_id;
      if (isDone) run = null;
      room.sync();
      if (isNew) room.showTokens(turn);
      if (isDone) room.save();
    }

    // Of a chat that was left. If the server had not heard of it when it was told to end it, it is told again.
    function left(update) {
      if (update.state !== "writing" || ended.has(update.run)) return;
      ended.add(update.run);
      room.trigger(room.events.halt, { run: update.run });
    }

    // Nothing was sent: everything is as it was before, and what was typed is in the box again.
    function takeBack() {
      const { before, typed } = run;
      run = null;
      putBack(before);
      if (typed) room.backIntoBox(typed);
      room.sync();
    }

    function breakOff(reason) {
      if (!run.isSent) {
        const back = run.typed ? " Your message is in the box again." : "";
        takeBack();
        return room.notice("Not sent: " + reason + back);
      }
      run.version.note = reason;
      run.version.meta = "broke off: " + reason;
      run = null;
      room.sync();
    }

    // The chat is left: nothing of this run comes back, and what nobody has read is in the box again.
    function leave() {
      if (!run) return;
      halt();
      if (!run.isSent) takeBack();
      run = null;
    }

    async function watch() {
      const watched = run;
      const silence = () => Date.now() - Math.max(watched.heard, watched.begun);
      while (run === watched) {
        await new Promise((go) => setTimeout(go, WATCH_EVERY));
        if (run !== watched || document.hidden || silence() < SILENT) continue;
        const isThere = await fetch("health").then((answer) => answer.ok, () => false);
        if (run !== watched || silence() < SILENT) continue;
        if (!isThere) breakOff("the connection to the server was lost.");
        else if (silence() > GIVEN_UP) { halt(); breakOff("nothing came from the server."); }
      }
    }

    return { begin, stop, take, leave, snapshot, current: () => run };
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chatRuns, randomId });
})();
