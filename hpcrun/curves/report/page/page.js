// The report's own script: it draws the data of the page with plotly.js, and obeys the controls.
"use strict";
(async () => {
  // plotly.js lies in the page gzipped, in base64; the policy allows its text by a hash.
  if (typeof DecompressionStream === "undefined") {
    document.getElementById("panels").textContent = "The curves need a newer browser (of 2023).";
    return;
  }
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const plotly = document.createElement("script");
  plotly.textContent = await new Response(unpacked).text();
  document.head.append(plotly);

  const data = JSON.parse(document.getElementById("data").textContent);
  const { runs, panels } = data;
  const several = runs.length > 1;
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const COLOURS = 8;
  const AXIS_TITLES = { step: "step", tokens: "tokens", time: "wall time",
    order: "point, in the order of the log" };
  const AXIS_NAMES = { step: "step", tokens: "tokens", order: "point" };
  const state = { by: data.axes[0] || "step", weight: data.smoothing, hidden: new Set(), zoom: null };

  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const lineColour = (index) => colour(`--c${index % COLOURS}`);
  const lineDash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];
  // plotly.js reads a subset of HTML and its own %{...} in the texts that it shows.
  const plain = (text) => text.replace(/[&<>%]/g, (char) => `&#${char.charCodeAt(0)};`);

  // The average of the past, weighted down by `weight` with each point and divided by the sum of
  // the weights; a value that is not finite leaves a gap, and the average as it was.
  function ewma(values, weight) {
    let sum = 0;
    let left = 1;
    return values.map((value) => {
      if (!Number.isFinite(value)) return NaN;
      sum = weight * sum + (1 - weight) * value;
      left *= weight;
      return sum / (1 - left);
    });
  }

  let longest = 1;
  // A map: a metric may bear any name, "constructor" too.
  for (const run of runs) {
    run.metrics = new Map(Object.entries(run.metrics));
    for (const metric of run.metrics.values()) {
      metric.values = metric.values.map(Number);
      longest = Math.max(longest, metric.values.length);
      metric.highest = metric.values.reduce(
        (most, value) => (Number.isFinite(value) && value > most ? value : most), 0);
    }
  }

  // ---- where the points stand

  function axisOf(panel) {
    const shown = runs.flatMap((run) =>
      panel.metrics.filter((name) => run.metrics.has(name))
        .map((name) => run.axes[run.metrics.get(name).axis]));
    return [state.by, "step"].find((by) => shown.every((axis) => axis[by])) || "order";
  }

  function places(run, name, by) {
    const axis = run.axes[run.metrics.get(name).axis];
    if (by !== "order") return axis[by];
    const kept = run.metrics.get(name).values.length;
    const gap = kept > 1 ? (axis.count - 1) / (kept - 1) : 1;
    return Array.from({ length: kept }, (_, index) => 1 + index * gap);
  }

  // Seconds are shown in the unit that suits the longest run.
  function timeUnit() {
    const ends = runs.flatMap((run) => run.axes.map((axis) => axis.time?.at(-1) ?? 0));
    const longest = Math.max(...ends);
    if (longest > 2 * 86400) return [86400, "days"];
    if (longest > 7200) return [3600, "hours"];
    return longest > 120 ? [60, "minutes"] : [1, "seconds"];
  }

  // The whole of an axis, the same for all panels, so that they stand in line.
  function wholeRange(panel, by) {
    const unit = by === "time" ? timeUnit()[0] : 1;
    const ends = by === "order"
      ? runs.flatMap((run) => panel.metrics.filter((name) => run.metrics.has(name))
        .flatMap((name) => [1, places(run, name, by).at(-1)]))
      : runs.flatMap((run) => run.axes.filter((axis) => axis[by])
        .flatMap((axis) => [axis[by][0] / unit, axis[by].at(-1) / unit]));
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const margin = (high - low) * 0.012 || 0.5;
    return [low - margin, high + margin];
  }

  // ---- what plotly.js is given

  function traces(panel) {
    const by = axisOf(panel);
    const unit = by === "time" ? timeUnit()[0] : 1;
    const lines = runs.flatMap((run, number) => (state.hidden.has(number) ? [] : panel.metrics
      .filter((name) => run.metrics.has(name))
      .map((name) => ({
        x: places(run, name, by).map((at) => at / unit),
        values: run.metrics.get(name).values,
        index: several ? number : panel.metrics.indexOf(name),
        label: several ? run.name : panel.labels[panel.metrics.indexOf(name)],
      }))));
    const points = lines.reduce((sum, line) => sum + line.x.length, 0);
    // Beside a line of other places, a value shows its own.
    const alike = lines.every((line) => line.x.every((at, index) => at === lines[0].x[index]));
    return lines.flatMap((line) => drawn(line, {
      weight: panel.smooth ? state.weight : 0,
      where: alike || by === "time" ? null : (at) => ` at ${AXIS_NAMES[by]} ${at.toLocaleString("en")}`,
      simplify: points > 40000,
    }));
  }

  // The traces of one line: its values, their average over them if it is smoothed, its crosses.
  function drawn({ x, values, index, label }, { weight, where, simplify }) {
    const few = values.length <= 40;
    // Over as long a part of the run as the longest line: a line of few points is smoothed less.
    const own = weight ** (longest / values.length);
    const trend = own > 0.01 && !few ? ewma(values, own) : null;
    const look = { color: lineColour(index), dash: lineDash(index), width: 1.8, simplify };
    const hover = {
      name: plain(label), hovertemplate: "%{customdata}", hoverlabel: { namelength: -1 },
      customdata: values.map((value, at) => String(value)
        + (trend ? ` (smoothed ${Number(trend[at].toPrecision(5))})` : "")
        + (where ? where(x[at]) : "")),
    };
    const made = trend
      ? [{ x, y: values, mode: "lines", line: { ...look, width: 1 }, opacity: 0.35, hoverinfo: "skip" },
        { ...hover, x, y: trend, mode: "lines", line: look }]
      : [{ ...hover, x, y: values, mode: few ? "lines+markers" : "lines", line: look,
        marker: { color: look.color, size: 6 } }];
    const broken = brokenPoints(x, values);
    return broken.x.length ? [...made, { ...broken, name: plain(label) }] : made;
  }

  // Values that are not finite, as crosses at the height of the last one that was.
  function brokenPoints(x, values) {
    const found = { x: [], y: [], customdata: [] };
    let height = values.find(Number.isFinite) ?? 0;
    values.forEach((value, at) => {
      if (Number.isFinite(value)) {
        height = value;
      } else {
        found.x.push(x[at]);
        found.y.push(height);
        found.customdata.push(String(value));
      }
    });
    return {
      ...found, mode: "markers", hovertemplate: "%{customdata}",
      marker: { symbol: "x", size: 8, color: colour("--alarm") },
    };
  }

  function restartLines(by) {
    if (by !== "step") return [];
    return runs.flatMap((run, number) => (state.hidden.has(number) ? [] : run.restarts.map(
      (restart) => ({
        type: "line", xref: "x", yref: "paper", x0: restart.at, x1: restart.at, y0: 0, y1: 1,
        layer: "below",
        line: { color: several ? lineColour(number) : colour("--quiet"), width: 1, dash: "dash" },
      }))));
  }

  function restartNames(by) {
    if (by !== "step" || several || runs[0].restarts.length > 8) return [];
    return runs[0].restarts.map((restart) => ({
      x: restart.at, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: "restart",
      font: { size: 10.5 }, hovertext: plain(restart.text),
    }));
  }

  function valueAxis(panel) {
    const highest = runs.flatMap((run) => panel.metrics.map((name) => run.metrics.get(name)?.highest ?? 0));
    const cut = panel.range && !panel.whole
      ? panel.range.map((end) => (panel.log ? Math.log10(end) : end)) : null;
    const range = panel.y || cut;
    return {
      type: panel.log ? "log" : "linear", exponentformat: "e",
      ...(!panel.log && Math.max(...highest) >= 1000 ? { tickformat: ",~f" } : {}),
      ...(range ? { range: [...range] } : { autorange: true }),
    };
  }

  function layout(panel) {
    const by = axisOf(panel);
    const title = by === "time" ? `wall time (${timeUnit()[1]})` : AXIS_TITLES[by];
    const grid = { gridcolor: colour("--grid"), linecolor: colour("--line"), zeroline: false };
    const range = state.zoom && state.zoom.by === by ? state.zoom.range : wholeRange(panel, by);
    const clear = "rgba(0,0,0,0)";
    return {
      margin: { l: 62, r: 14, t: 26, b: 40 },
      paper_bgcolor: clear, plot_bgcolor: clear,
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--quiet") },
      modebar: { bgcolor: clear, color: colour("--quiet"), activecolor: colour("--accent") },
      showlegend: false, hovermode: "x unified",
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"),
        font: { color: colour("--text"), size: 12.5 } },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...grid, title: { text: title, standoff: 6 }, range: [...range],
        unifiedhovertitle: { text: by === "time" ? `%{x:.4~g} ${timeUnit()[1]}`
          : `${AXIS_NAMES[by]} %{x:,}` },
        hoverformat: by === "time" ? ".4~g" : ",",
        spikecolor: colour("--quiet"), spikethickness: 1, spikedash: "dot",
        ...(by === "tokens" ? { exponentformat: "B" } : { tickformat: ",~f" }),
        ...(by !== "time" && range[1] - range[0] < 12 ? { dtick: 1 } : {}) },
      yaxis: { ...grid, ...valueAxis(panel) },
      shapes: restartLines(by), annotations: restartNames(by),
    };
  }

  const CONFIG = {
    displaylogo: false, responsive: true, displayModeBar: "hover", doubleClick: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]],
    toImageButtonOptions: { format: "png", scale: 2 },
  };

  // ---- panels

  function build(panel) {
    const log = element("button", { type: "button", textContent: "log", title: "logarithmic axis" });
    log.setAttribute("aria-pressed", String(panel.log));
    log.addEventListener("click", () => {
      panel.log = !panel.log;
      panel.y = null;
      log.setAttribute("aria-pressed", String(panel.log));
      draw(panel);
    });
    panel.note = element("span", { className: "quiet" });
    panel.plot = element("div", { className: "plot", tabIndex: 0 });
    panel.plot.setAttribute("role", "group");
    panel.plot.setAttribute("aria-label", `${panel.title}: curve, see Numbers for its values`);
    panel.plot.addEventListener("keydown", (event) => move(event, panel));
    const heading = element("h3", { textContent: panel.title });
    if (panel.unit) heading.append(element("span", { className: "quiet", textContent: ` ${panel.unit}` }));
    panel.box = element("section", { className: "panel" },
      element("header", {}, heading, panel.note, log), panel.plot);
    panel.box.dataset.metric = panel.metrics[0];
    describe(panel);
  }

  function describe(panel) {
    panel.note.replaceChildren();
    if (panel.metrics.length > 1) {
      panel.labels.forEach((label, place) => {
        const swatch = element("span", { className: "swatch" });
        swatch.style.borderColor = lineColour(place);
        panel.note.append(element("span", { className: "key" }, swatch, label.toLowerCase()));
      });
    }
    if (panel.beyond && !panel.whole) {
      const all = element("button", { type: "button",
        textContent: `${panel.beyond} beyond this axis: show` });
      all.addEventListener("click", () => { panel.whole = true; draw(panel); describe(panel); });
      panel.note.append(all);
    }
  }

  // A panel out of sight waits until it is scrolled to.
  function draw(panel) {
    panel.stale = !panel.near || !panel.shown;
    if (panel.stale) return;
    const isNew = !panel.drawn;
    panel.drawn = true;
    Plotly.react(panel.plot, traces(panel), layout(panel), CONFIG);
    if (!isNew) return;
    panel.plot.on("plotly_relayout", (change) => {
      if (panel.quiet) return;
      if ("yaxis.range[0]" in change) panel.y = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
      if ("xaxis.range[0]" in change) {
        zoom([change["xaxis.range[0]"], change["xaxis.range[1]"]], axisOf(panel), panel);
      }
    });
    panel.plot.on("plotly_doubleclick", () => zoom(null));
  }

  const drawAll = () => panels.forEach(draw);

  // All panels over the same axis show the same part of it; null: the whole, of the values too.
  function zoom(range, by, source) {
    state.zoom = range && { range, by };
    for (const panel of panels) {
      if (!range) panel.y = null;
      if (panel === source || !panel.drawn || !panel.shown || (range && axisOf(panel) !== by)) continue;
      const { xaxis, yaxis } = layout(panel);
      panel.quiet = true;
      Plotly.relayout(panel.plot, {
        "xaxis.range": xaxis.range,
        ...(yaxis.range ? { "yaxis.range": yaxis.range } : { "yaxis.autorange": true }),
      }).then(() => { panel.quiet = false; });
    }
  }

  function move(event, panel) {
    const shown = panel.plot.layout.xaxis.range;
    const width = shown[1] - shown[0];
    const middle = (shown[0] + shown[1]) / 2;
    const steps = {
      "+": () => [middle - width / 4, middle + width / 4],
      "=": () => [middle - width / 4, middle + width / 4],
      "-": () => [middle - width, middle + width],
      ArrowLeft: () => shown.map((end) => end - width / 4),
      ArrowRight: () => shown.map((end) => end + width / 4),
      0: () => null,
    };
    if (!Object.hasOwn(steps, event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    zoom(steps[event.key](), axisOf(panel));
  }

  // ---- controls

  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.find((each) => each.box === entry.target);
      panel.near = entry.isIntersecting;
      if (panel.stale) draw(panel);
    }
  }, { rootMargin: "300px" });

  function arrange() {
    const shown = panels.filter((panel) => panel.shown);
    document.getElementById("panels").replaceChildren(...shown.map((panel) => panel.box));
    for (const panel of panels) {
      sight.unobserve(panel.box);
      if (panel.shown) sight.observe(panel.box);
    }
    for (const panel of shown) if (panel.drawn) Plotly.Plots.resize(panel.plot);
  }
  function chip(type, name, label, checked, changed) {
    const input = element("input", { type, name, checked });
    input.addEventListener("change", () => changed(input.checked));
    return element("label", {}, input, element("span", { textContent: label }));
  }

  for (const panel of panels) {
    build(panel);
    const label = panel.title + (panel.unit ? `, ${panel.unit}` : "");
    document.getElementById("chips").append(chip("checkbox", "metric", label, panel.shown, (on) => {
      panel.shown = on;
      panel.stale = true;
      arrange();
    }));
  }
  const axes = document.getElementById("axes");
  for (const by of data.axes) {
    axes.append(chip("radio", "by", AXIS_TITLES[by], by === state.by, () => {
      state.by = by;
      state.zoom = null;
      drawAll();
    }));
  }
  axes.hidden = data.axes.length < 2;

  const slider = document.getElementById("smoothing");
  const weight = document.getElementById("weight");
  const showWeight = () => { weight.textContent = state.weight ? state.weight.toFixed(2) : "off"; };
  let asked = 0;
  slider.value = state.weight;
  slider.addEventListener("input", () => {
    state.weight = Number(slider.value);
    showWeight();
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(drawAll);
  });
  document.getElementById("reset").addEventListener("click", () => zoom(null));

  const boxes = [...document.querySelectorAll("input.run")];
  function readRuns() {
    state.hidden = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
    drawAll();
  }
  const tickAll = (on) => {
    for (const box of boxes) box.checked = on;
    readRuns();
  };
  for (const box of boxes) box.addEventListener("change", readRuns);
  document.getElementById("all-runs")?.addEventListener("click", () => tickAll(true));
  document.getElementById("no-runs")?.addEventListener("click", () => tickAll(false));

  function paint() {
    document.querySelectorAll("#runs-table .swatch").forEach((swatch, index) => {
      swatch.style.borderColor = lineColour(index);
      swatch.style.borderTopStyle = lineDash(index) === "solid" ? "solid"
        : lineDash(index) === "dot" ? "dotted" : "dashed";
    });
    for (const panel of panels) describe(panel);
    drawAll();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  showWeight();
  paint();
  arrange();
})();
