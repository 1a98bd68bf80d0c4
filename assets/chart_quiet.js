/* What a plot shows and nobody can point at: cells, fills, frames, letters. Plotly gives each an element of its own,
   and goes through all of them in each drawing: a quarter of the time of all charts. Here boxes and lines are
   painted on one canvas, and letters are HTML that changes where they do, both between Plotly's drawing and its
   hovers. A figure stays whole: Plotly draws all of it into pictures, and where somebody has zoomed in. */
(function () {
  "use strict";

  const SIDES = { left: -100, center: -50, right: 0 }, HEIGHTS = { top: -100, middle: -50, bottom: 0 };
  const HATCHES = { "/": "M-1,1L1,-1M0,4L4,0M3,5L5,3", x: "M-1,1L1,-1M0,4L4,0M3,5L5,3M3,-1L5,1M0,0L4,4M-1,3L1,5" };

  const each = (value, i) => (Array.isArray(value) ? value[i] : value);
  const isEmpty = (trace) => (trace.z || trace.x).length === 0;

  // Of what Plotly can do in a trace without a hover, what our figures ask for; all else is left to it.
  function isQuiet(trace) {
    if (trace.hoverinfo !== "skip" || trace.stackgroup) return false;
    if (trace.type === "bar") return !(trace.marker.pattern || trace.marker.line.width);
    if (trace.type !== "scatter" || (trace.line && trace.line.shape)) return false;
    return trace.mode.includes("text") || trace.mode.includes("markers")
      ? trace.cliponaxis === false && (trace.mode === "text" || trace.marker.symbol === "circle")
      : ["none", "lines"].includes(trace.mode);
  }

  // Shapes above all traces.
  function isOver(shape) { return shape.layer !== "below" && ["line", "path"].includes(shape.type); }

  // {plotted, quiet} of a figure, each {traces, shapes}. What is ours lies over what is Plotly's: so it begins after
  // the last trace that has to be Plotly's. Empty ones may be needed for their axes.
  function split({ data, layout: { shapes = [] } }) {
    let end = data.length;
    while (end && (isEmpty(data[end - 1]) || isQuiet(data[end - 1]))) end--;
    const isOurs = (trace, i) => i >= end && !isEmpty(trace);
    return {
      plotted: { traces: data.filter((trace, i) => !isOurs(trace, i)), shapes: shapes.filter((one) => !isOver(one)) },
      quiet: { traces: data.filter(isOurs), shapes: shapes.filter((one) => isOver(one) && one.visible !== false) },
    };
  }

  // ---------------------------------------------------------------- from values to pixels

  function scale(axis, first, last) {
    const [low, high] = axis.range, [from, to] = axis.domain || [0, 1];
    const zero = first + (last - first) * from, unit = ((last - first) * (to - from)) / (high - low);
    return Object.assign((value) => zero + unit * (value - low), { unit });
  }

  // {x, y, box}: how values lie on two axes. box: [left, top, width, height], what is clipped to. An axis is named as
  // in a shape: "x2", "x2 domain", or "paper"; the last two clip nothing.
  function axesOf(xref, yref, layout, width, height) {
    const { l, r, t, b } = layout.margin, whole = { range: [0, 1] };
    const of = (ref) => {
      const axis = ref === "paper" ? whole : layout[ref[0] + "axis" + ref.slice(1).split(" ")[0]];
      return ref.endsWith("domain") ? { ...whole, domain: axis.domain } : axis;
    };
    const [x, y] = [scale(of(xref), l, width - r), scale(of(yref), height - b, t)];
    const ends = (ref, at, size) =>
      (/^[xy]\d*$/.test(ref) ? of(ref).range.map(at).sort((one, two) => one - two) : [0, size]);
    const [left, right] = ends(xref, x, width), [top, bottom] = ends(yref, y, height);
    return { x, y, box: [left, top, right - left, bottom - top] };
  }

  function axesOfTrace(trace, ...sizes) { return axesOf(trace.xaxis || "x", trace.yaxis || "y", ...sizes); }

  // ---------------------------------------------------------------- boxes and lines

  const patterns = new Map();

  function paintOf(ctx, trace) {
    const told = trace.fillpattern;
    if (!told || !told.shape) return trace.fillcolor;
    const key = JSON.stringify([told, devicePixelRatio]);
    if (!patterns.has(key)) patterns.set(key, ctx.createPattern(tile(told), "repeat"));
    patterns.get(key).setTransform(new DOMMatrix().scale(1 / devicePixelRatio));
    return patterns.get(key);
  }

  // One period, in pixels of the screen.
  function tile({ shape, size, solidity = 0.3, bgcolor, fgcolor, fgopacity = 1 }) {
    const node = document.createElement("canvas"), hatch = HATCHES[shape];
    const side = node.width = node.height = Math.round(size * devicePixelRatio * (hatch ? Math.SQRT2 : 1));
    const ctx = node.getContext("2d");
    ctx.fillStyle = bgcolor;
    ctx.fillRect(0, 0, side, side);
    ctx.globalAlpha = fgopacity;
    ctx.fillStyle = ctx.strokeStyle = fgcolor;
    if (hatch) {
      ctx.scale(side / 4, side / 4);
      ctx.lineWidth = (4 * (shape === "x" ? 1 - Math.sqrt(1 - solidity) : solidity)) / Math.SQRT2;
      ctx.stroke(new Path2D(hatch));
    } else {
      ctx.arc(side / 2, side / 2, side * Math.sqrt(solidity / Math.PI), 0, 2 * Math.PI);
      ctx.fill();
    }
    return node;
  }

  function paintPath(ctx, trace, { x, y }) {
    let isOpen = false;
    ctx.beginPath();
    trace.x.forEach((value, i) => {
      if (value == null || trace.y[i] == null) return void (isOpen = false);
      ctx[isOpen ? "lineTo" : "moveTo"](x(value), y(trace.y[i]));
      isOpen = true;
    });
    if (trace.fill) { ctx.fillStyle = paintOf(ctx, trace); ctx.fill(); }
    if (trace.mode !== "lines") return;
    takePen(ctx, trace.line);
    ctx.stroke();
  }

  function takePen(ctx, { color, width, dash = "solid" }) {
    const gap = Math.max(width, 3);
    ctx.setLineDash(dash === "solid" ? [] : dash === "dot" ? [gap, gap] : dash === "dash" ? [3 * gap, 3 * gap]
      : dash.split(",").map(parseFloat));
    Object.assign(ctx, { strokeStyle: color, lineWidth: width });
  }

  function paintShape(ctx, shape, { x, y }) {
    const path = new Path2D();
    if (shape.type === "path") path.addPath(new Path2D(shape.path), new DOMMatrix([x.unit, 0, 0, y.unit, x(0), y(0)]));
    else { path.moveTo(x(shape.x0), y(shape.y0)); path.lineTo(x(shape.x1), y(shape.y1)); }
    takePen(ctx, shape.line);
    ctx.stroke(path);
  }

  function paintBars(ctx, trace, { x, y }) {
    const isLying = trace.orientation === "h", [along, across] = isLying ? [x, y] : [y, x];
    const [lengths, places] = isLying ? [trace.x, trace.y] : [trace.y, trace.x];
    lengths.forEach((length, i) => {
      const width = each(trace.width, i), base = each(trace.base, i);
      const from = along(base), side = across(places[i] - width / 2);
      const size = [along(base + length) - from, across(places[i] + width / 2) - side];
      ctx.fillStyle = each(trace.marker.color, i);
      if (isLying) ctx.fillRect(from, side, ...size);
      else ctx.fillRect(side, from, size[1], size[0]);
    });
  }

  function paintDiscs(ctx, trace, { x, y }) {
    ctx.fillStyle = trace.marker.color;
    trace.x.forEach((value, i) => {
      ctx.beginPath();
      ctx.arc(x(value), y(trace.y[i]), trace.marker.size / 2, 0, 2 * Math.PI);
      ctx.fill();
    });
  }

  function paint(canvas, { traces, shapes }, layout, width, height) {
    const ratio = devicePixelRatio, ctx = canvas.getContext("2d");
    for (const [side, size] of [["width", width], ["height", height]])
      if (canvas[side] !== Math.round(size * ratio)) canvas[side] = Math.round(size * ratio);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, height);
    const paintIn = (axes, isClipped, brush, one) => {
      ctx.save();
      ctx.beginPath();
      if (isClipped) { ctx.rect(...axes.box); ctx.clip(); }
      brush(ctx, one, axes);
      ctx.restore();
    };
    for (const trace of traces) {
      if (trace.mode === "text") continue;
      const brush = trace.type === "bar" ? paintBars : trace.marker ? paintDiscs : paintPath;
      paintIn(axesOfTrace(trace, layout, width, height), trace.cliponaxis !== false, brush, trace);
    }
    for (const shape of shapes)
      paintIn(axesOf(shape.xref || "x", shape.yref || "y", layout, width, height), true, paintShape, shape);
  }

  // ---------------------------------------------------------------- letters

  function lettersOf(trace, layout, width, height) {
    const { x, y, box: [left, top, wide, high] } = axesOfTrace(trace, layout, width, height), font = trace.textfont;
    const [above, side] = (trace.textposition || "middle center").split(" ");
    const found = [];
    trace.text.forEach((text, i) => {
      const at = x(trace.x[i]), down = y(trace.y[i]);
      const isInside = at > left - 0.5 && at < left + wide + 0.5 && down > top - 0.5 && down < top + high + 0.5;
      if (!isInside) return;
      found.push({ text, style: `transform: translate(${at.toFixed(1)}px, ${down.toFixed(1)}px) ` +
        `translate(${SIDES[side]}%, ${HEIGHTS[above]}%); font: ${each(font.size, i)}px/1 ${font.family}; ` +
        `color: ${each(font.color, i)}` });
    });
    return found;
  }

  function showLetters(layer, shown, found) {
    while (shown.length > found.length) shown.pop().node.remove();
    found.forEach(({ text, style }, i) => {
      if (!shown[i]) layer.append((shown[i] = { node: document.createElement("span") }).node);
      if (shown[i].style !== style) shown[i].node.style.cssText = style;
      if (shown[i].text !== text) window.microVLLM.chartMarkup(shown[i].node, text);
      Object.assign(shown[i], { text, style });
    });
  }

  // Returns what shows the quiet part of a figure, over what Plotly has drawn in `box` of the rest.
  function chartQuiet(box) {
    const canvas = document.createElement("canvas"), layer = document.createElement("div"), shown = [];
    canvas.className = "mv-quiet";
    layer.className = "mv-letters";
    return (quiet, ...sizes) => {  // layout, width, height
      if (!layer.isConnected) box.querySelector(".main-svg").after(canvas, layer);
      paint(canvas, quiet, ...sizes);
      const words = quiet.traces.filter((trace) => trace.mode && trace.mode.includes("text"));
      showLetters(layer, shown, words.flatMap((trace) => lettersOf(trace, ...sizes)));
    };
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chartQuiet, chartParts: split });
})();
