/* The words around a plot: headlines, medians, numbers beside a bar, names of rows. They are annotations of the figure
   and labels of its vertical axes, which Plotly would make and measure anew in each drawing: the annotations alone took
   a fifth of the time of all charts. As HTML they change where they do. */
(function () {
  "use strict";

  const TAGS = /<(\/?)(b|br|s|span)(?: style="color:([^"]*)")?>/g;

  // Those that keep their place whatever is zoomed into; a ground or an arrow has to lie over the plot.
  function isBeside(note) {
    return note.xref === "paper" && note.yref === "paper" && !note.bgcolor && !note.bordercolor && !note.showarrow;
  }

  // A vertical axis whose labels the figure gives.
  function isNamed(name, axis) { return /^yaxis\d*$/.test(name) && axis.ticktext && axis.visible !== false; }

  // Such labels as annotations: where Plotly puts them.
  function rowNames(layout) {
    return Object.entries(layout).filter((entry) => isNamed(...entry)).flatMap(([, axis]) => {
      const [low, high] = axis.range, [bottom, top] = axis.domain || [0, 1];
      const across = layout["xaxis" + (axis.anchor || "x").slice(1)] || {};
      return axis.tickvals.map((value, i) => ({
        text: axis.ticktext[i], font: axis.tickfont, share: (value - low) / (high - low),
        x: (across.domain || [0])[0], xanchor: "right", xshift: -0.5, yanchor: "middle", borderpad: -1, leading: 1,
      })).filter(({ share }) => share >= 0 && share <= 1)
        .map(({ share, ...note }) => ({ ...note, y: bottom + (top - bottom) * share }));
    });
  }

  // What Plotly still has to draw: of the annotations, and of the axes.
  function inPlot(notes) { return (notes || []).filter((note) => note.visible !== false && !isBeside(note)); }

  function unnamed(layout) {
    return Object.fromEntries(Object.entries(layout).map(([name, one]) =>
      [name, isNamed(name, one) ? { ...one, showticklabels: false } : one]));
  }

  // <b>, <br>, <s> and coloured <span> are markup, as in Plotly; all else is text.
  function fill(node, text) {
    const open = [document.createDocumentFragment()];
    let from = 0;
    for (const found of text.matchAll(TAGS)) {
      open.at(-1).append(text.slice(from, found.index));
      from = found.index + found[0].length;
      const [, closes, tag, color] = found;
      if (closes) { if (open.length > 1) open.pop(); continue; }
      const made = document.createElement(tag);
      if (color) made.style.color = color;
      open.at(-1).append(made);
      if (tag !== "br") open.push(made);
    }
    open.at(-1).append(text.slice(from));
    node.replaceChildren(open[0]);
  }

  // As Plotly does: without an anchor, words in the outer thirds grow inwards.
  function anchor(named, at, names) {
    const i = names.indexOf(named);
    return i >= 0 ? i / 2 : at < 1 / 3 ? 0 : at > 2 / 3 ? 1 : 0.5;
  }

  function place(node, note, margin, width, height) {
    const x = margin.l + note.x * (width - margin.l - margin.r) + (note.xshift || 0);
    const y = margin.t + (1 - note.y) * (height - margin.t - margin.b) - (note.yshift || 0);
    const right = anchor(note.xanchor, note.x, ["left", "center", "right"]);
    const down = 1 - anchor(note.yanchor, note.y, ["bottom", "middle", "top"]);
    node.style.cssText = `left: ${x}px; top: ${y}px; transform: translate(${-100 * right}%, ${-100 * down}%); ` +
      `padding: ${1 + (note.borderpad ?? 1)}px; ` +
      `font: ${note.font.size}px/${note.leading || 1.3} ${note.font.family}; ` +
      `color: ${note.font.color}; text-align: ${note.align || "center"}`;
  }

  // A layer of `box` below its plot, so that hovers cover the words. Returns what shows the words of a layout, and the
  // names of rows that are not left to Plotly.
  function chartWords(box) {
    const layer = document.createElement("div"), shown = [];
    layer.className = "mv-words";
    return (layout, width, height, hasNames = false) => {
      if (box.firstChild !== layer) box.prepend(layer);
      const notes = (layout.annotations || []).filter((note) => note.visible !== false && isBeside(note));
      if (hasNames) notes.push(...rowNames(layout));
      while (shown.length > notes.length) shown.pop().node.remove();
      notes.forEach((note, i) => {
        const { text, ...where } = note;
        const told = JSON.stringify([where, layout.margin, width, height]);
        if (!shown[i]) layer.append((shown[i] = { node: document.createElement("span") }).node);
        if (shown[i].told !== told) place(shown[i].node, note, layout.margin, width, height);
        if (shown[i].text !== text) fill(shown[i].node, text);
        Object.assign(shown[i], { told, text });
      });
    };
  }

  window.microVLLM = Object.assign(window.microVLLM || {}, { chartWords, inPlot, unnamed, chartMarkup: fill });
})();
