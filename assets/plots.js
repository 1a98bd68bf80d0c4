/* One chart in its box: holds the figure, takes what has changed, draws it with Plotly, keeps what was zoomed into. */
(function () {
  "use strict";

  const SIDES = ["clientWidth", "clientHeight"], MEASURED = Object.getOwnPropertyDescriptors(Element.prototype);
  const AXIS = /^[xy]axis\d*$/, DRAGGED = /^([xy]axis\d*)\.range\[([01])\]$/;

  // With `start` and `keep` a window has moved on: so much of the list stays, and `value` follows it.
  function put(target, path, value, start, keep) {
    let at = target;
    for (let i = 0; i < path.length - 1; i++) at = at[path[i]];
    const last = path[path.length - 1];
    at[last] = keep === undefined ? value : at[last].slice(start, start + keep).concat(value);
  }

  // Many traces are empty in most steps, and Plotly goes through all that it does for the others. One stays where it
  // is the only one on its axes: without it they would not be drawn.
  function marked(traces) {
    const axes = (trace) => (trace.xaxis || "x") + (trace.yaxis || "y");
    const isFull = (trace) => (trace.z || trace.x).length > 0;
    const drawn = new Set(traces.filter(isFull).map(axes));
    return traces.filter((trace) => isFull(trace) || (!drawn.has(axes(trace)) && drawn.add(axes(trace))));
  }

  // `resized` is called when the box has another size: cells and labels are laid out for one.
  function plot(box, id, title, resized) {
    const one = { box, title, figure: null, version: "", width: 0, height: 0, update, forgetZoom };
    const words = window.microVLLM.chartWords(box), showQuiet = window.microVLLM.chartQuiet(box);
    let isPlotted = false, isPanning = false, isHeld = false, zoom = {}, kept = null;

    async function update(change) {
      if (change.full) one.figure = change.full;
      else for (const each of change.patch) put(one.figure, ...each);
      one.version = change.version;
      await draw();
    }

    function layout() {
      // The arrays are changed in place: datarevision is how Plotly is told.
      const found = Object.assign({}, one.figure.layout,
        { datarevision: one.version, width: one.width, height: one.height });
      // Plotly writes into the axes that it is given, and into their ranges; ours stay as the server knows them.
      for (const [name, axis] of Object.entries(found))
        if (AXIS.test(name)) found[name] = Object.assign({}, axis, { range: (zoom[name] || axis.range).slice() });
      return found;
    }

    async function draw() {
      // Hidden since it was asked for: the figure is kept, and drawn in full size when its box has one again.
      if (!one.figure || !one.width || !one.height) return;
      const { figure, width, height } = one, isWhole = isPanning || isHeld || Object.keys(zoom).length > 0;
      const shown = isWhole ? layout() : window.microVLLM.unnamed(layout());
      const whole = { plotted: { traces: figure.data, shapes: shown.shapes }, quiet: { traces: [], shapes: [] } };
      const { plotted, quiet } = isWhole ? whole : window.microVLLM.chartParts(figure);
      Object.assign(shown, { annotations: window.microVLLM.inPlot(shown.annotations), shapes: plotted.shapes });
      words(figure.layout, width, height, !isWhole);
      if (isPlotted) await Plotly.react(box, marked(plotted.traces), shown, config());
      else await begin(marked(plotted.traces), shown);
      showQuiet(quiet, figure.layout, width, height);
    }

    async function begin(traces, shown) {
      isPlotted = true;
      await Plotly.newPlot(box, traces, shown, config());
      box.on("plotly_relayout", zoomed);
      box.on("plotly_doubleclick", unzoom);
      if (window.microVLLM.focusable) window.microVLLM.focusable(box);
    }

    // ---------------------------------------------------------------- buttons, zoom

    function config() {
      kept = kept || { displaylogo: false, displayModeBar: "hover", responsive: false, scrollZoom: false,
        doubleClick: false, showAxisDragHandles: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d",
          // What is on this page stays here; the picture has to have its words.
          "resetScale2d", "sendChartToCloud", "toImage"],
        modeBarButtonsToAdd: [
          { name: "whole", title: "Show everything again (or double-click)", icon: Plotly.Icons.home, click: unzoom },
          { name: "picture", title: "Save as a picture", icon: Plotly.Icons.camera, click: save }] };
      return kept;
    }

    function save() {
      const ground = one.figure.layout.hoverlabel.bgcolor;  // the card's
      const picture = { data: one.figure.data, layout: Object.assign(layout(), { paper_bgcolor: ground }) };
      const { width, height } = one;
      return Plotly.downloadImage(picture, { filename: id, format: "png", width, height, scale: 2 });
    }

    // uirevision keeps a zoom only until the range of an axis moves on, which live axes always do. So it is kept here.
    function zoomed(change) {
      if (change.dragmode) isPanning = change.dragmode === "pan";  // follows the pointer, which only Plotly's own does
      for (const [key, value] of Object.entries(change)) {
        const [, axis, end] = DRAGGED.exec(key) || [];
        const range = axis && (zoom[axis] || (one.figure.layout[axis] || {}).range);
        if (range) (zoom[axis] = zoom[axis] || range.slice())[end] = value;
      }
      draw();
    }

    // With one of these keys a drag pans, and Plotly tells nobody before it is over.
    box.addEventListener("pointerdown", (event) => {
      isHeld = event.shiftKey || event.ctrlKey;
      if (isHeld) draw();
    }, { capture: true });
    const letGo = () => { isHeld = false; draw(); };
    for (const kind of ["pointerup", "pointercancel"])
      window.addEventListener(kind, () => { if (isHeld) setTimeout(letGo); });  // after Plotly has heard of it

    function unzoom() {
      zoom = {};
      draw();
    }

    function forgetZoom() { zoom = {}; }

    // Its size is noted when it changes: to ask for it between two drawings makes the browser lay out the whole page.
    new ResizeObserver(() => {
      [one.width, one.height] = SIDES.map((side) => MEASURED[side].get.call(box));
      if (!one.width || !one.height) return;
      if (window.Plotly) draw();
      resized();
    }).observe(box);
    // Plotly asks for it before each drawing, too: a fifth of the time that all charts took.
    SIDES.forEach((side, i) => Object.defineProperty(box, side, { get: () => [one.width, one.height][i] }));
    return one;
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { plot });
})();
