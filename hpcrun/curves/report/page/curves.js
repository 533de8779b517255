// Panels with the curves of runs, drawn with uPlot, and their controls. The HTML report and the
// page of hpcrun ui use it: makeCurves(root, data) fills an element; data is that of page_data() in
// html.py. Texts are only ever set as textContent, because names of runs and metrics are untrusted.
"use strict";
const makeCurves = (() => {
  const DASHES = [[], [7, 4], [2, 3], [8, 3, 2, 3]];
  const COLOURS = 8;
  const AXIS_TITLES = { step: "step", tokens: "tokens", time: "wall time",
    order: "point, in the order of the log" };
  const AXIS_NAMES = { step: "step", tokens: "tokens", order: "point" };
  const MARKED_POINTS = 40; // a line of so few points shows each of them
  const MAX_NOISY_LINES = 6;
  // Points for each pixel from which a line is drawn as bars: alone, and as one of many lines.
  const [DENSE, DENSE_OF_MANY] = [1.5, 0.25];
  const POINTS_OF_A_STROKE = 16;
  const NAMED_RESTARTS = 8;
  const TOOLTIP_ROWS = 14;
  const FONT = "12px system-ui, sans-serif";

  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  };
  // The colours of the theme, which take long to look up.
  const colours = new Map();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());
  const colour = (name) => {
    if (!colours.has(name)) {
      colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return colours.get(name);
  };
  const lineColour = (index) => colour(`--c${index % COLOURS}`);
  const lineDash = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];

  // Show the colour and the dashes of a line in an element.
  function paintSwatch(swatch, index) {
    const kind = Math.floor(index / COLOURS) % DASHES.length;
    swatch.style.borderTopColor = lineColour(index);
    swatch.style.borderTopStyle = ["solid", "dashed", "dotted", "dashed"][kind];
  }

  // ---- numbers

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

  function formatTick(value, gap) {
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential().replace("e+", "e");
    let digits = gap > 0 ? 0 : 3;
    while (gap > 0 && digits < 8 && Math.abs(gap * 10 ** digits - Math.round(gap * 10 ** digits)) > 1e-6) digits += 1;
    return value.toLocaleString("en", { minimumFractionDigits: gap > 0 ? digits : 0, maximumFractionDigits: digits });
  }

  const formatTicks = (ticks) => {
    const gap = ticks.length > 1 ? ticks[1] - ticks[0] : 0;
    return ticks.map((tick) => formatTick(Number(tick.toPrecision(12)), gap));
  };

  // The ticks of a logarithmic axis: powers of ten, and steps between them if there is room.
  function logTicks(low, high) {
    const first = Math.floor(Math.log10(low));
    const last = Math.ceil(Math.log10(high));
    for (const digits of [[1, 1.5, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
      for (let stride = 1; stride <= (digits.length > 1 ? 1 : last - first + 1); stride += 1) {
        const found = [];
        for (let power = first; power <= last; power += 1) {
          if ((power - first) % stride) continue;
          for (const digit of digits) {
            const tick = Number(`${digit}e${power}`);
            if (tick >= low && tick <= high) found.push(tick);
          }
        }
        if (found.length <= 9) return found;
      }
    }
    return [];
  }

  // The index of the first of increasing numbers that is not below `value`.
  function lowerBound(numbers, value) {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The index of the number that is nearest to `value`, for increasing numbers.
  function nearest(numbers, value) {
    const at = lowerBound(numbers, value);
    if (at === 0) return 0;
    if (at === numbers.length) return at - 1;
    return value - numbers[at - 1] <= numbers[at] - value ? at - 1 : at;
  }

  // ---- drawing on the canvas of uPlot

  // A function from values to pixels, several times as fast as valToPos.
  function pixels(u, key, isLog) {
    const { min, max } = u.scales[key];
    const measure = isLog ? Math.log10 : Number;
    const from = u.valToPos(min, key, true);
    const factor = (u.valToPos(max, key, true) - from) / (measure(max) - measure(min) || 1);
    const origin = measure(min);
    return isLog
      ? (value) => (value > 0 ? from + (Math.log10(value) - origin) * factor : NaN)
      : (value) => from + (value - origin) * factor;
  }

  // Draw a line. Where several points share a column of pixels, only its first, lowest, highest and
  // last one are drawn, and only the last one if they are less than a pixel apart. A value that is not finite leaves a gap; a point between two gaps is a dot.
  // `grain` is the width of a column in pixels; of wider columns only the first point is drawn,
  // which suits smoothed values.
  function drawLine(u, x, y, begin, end, toX, toY, grain) {
    const { ctx } = u;
    ctx.beginPath();
    let isDown = false;
    const alone = [];
    let [count, length, lastX, lastY] = [0, 0, 0, 0];
    const put = (px, py) => {
      if (isDown) {
        ctx.lineTo(px, py);
        length += Math.hypot(px - lastX, py - lastY);
      } else ctx.moveTo(px, py);
      isDown = true;
      [lastX, lastY] = [px, py];
      count += 1;
      // Short strokes take less time than a long one, because they cross fewer others.
      if (count % POINTS_OF_A_STROKE === 0) {
        ctx.stroke();
        ctx.beginPath();
        ctx.moveTo(px, py);
        ctx.lineDashOffset = length;
      }
    };
    for (let at = begin; at < end;) {
      const px = toX(x[at]);
      const edge = (Math.floor(px / grain) + 1) * grain;
      const first = toY(y[at]);
      if (!Number.isFinite(first)) {
        isDown = false;
        at += 1;
        continue;
      }
      const isAlone = !isDown && !(at + 1 < end && Number.isFinite(toY(y[at + 1])));
      let [low, high, last] = [first, first, first];
      at += 1;
      for (; at < end && toX(x[at]) < edge; at += 1) {
        const next = toY(y[at]);
        if (!Number.isFinite(next)) break;
        if (next < low) low = next;
        if (next > high) high = next;
        last = next;
      }
      put(px, first);
      if (high - low > 1 && grain === 1) {
        put(px, low);
        put(px, high);
        put(px, last);
      }
      if (isAlone) alone.push([px, first]);
    }
    ctx.stroke();
    ctx.lineDashOffset = 0;
    for (const [px, py] of alone) drawDot(u, px, py, 1.5);
  }

  // Draw a line of many points as a bar in each column of pixels, over the heights that the line
  // has within the column: without a graphics card that is ten times as fast as a path.
  function drawBars(u, x, y, begin, end, toX, toY, width) {
    const { ctx, bbox } = u;
    const [left, right] = [Math.floor(bbox.left), Math.ceil(bbox.left + bbox.width)];
    // The bars of a line with points in each column stand side by side.
    const thickness = end - begin > bbox.width ? 1 : Math.max(Math.round(width), 1);
    // Each dash is as wide as one of a line that runs across.
    const dashes = ctx.getLineDash();
    const period = dashes.reduce((sum, part) => sum + part, 0);
    const isGap = (at) => {
      if (!period) return false;
      let rest = at % period;
      return dashes.findIndex((part) => (rest -= part) < 0) % 2 === 1;
    };
    let column = NaN;
    let [low, high] = [Infinity, -Infinity];
    const fill = () => {
      if (low > high || isGap(column)) return;
      const top = Math.round(low - width / 2);
      ctx.fillRect(column, top, thickness, Math.max(Math.round(high + width / 2) - top, 1));
    };
    const cover = (at, from, to) => {
      if (at !== column) {
        fill();
        column = at;
        [low, high] = [Infinity, -Infinity];
      }
      if (from < low) low = from;
      if (to < low) low = to;
      if (from > high) high = from;
      if (to > high) high = to;
    };
    let [beforeX, beforeY] = [NaN, NaN];
    for (let at = begin; at < end; at += 1) {
      const [px, py] = [toX(x[at]), toY(y[at])];
      if (!Number.isFinite(py)) { // a gap
        beforeX = NaN;
        continue;
      }
      if (Number.isNaN(beforeX)) [beforeX, beforeY] = [px, py];
      const last = Math.floor(px);
      if (Math.floor(beforeX) === last) cover(last, beforeY, py);
      else {
        const slope = (py - beforeY) / (px - beforeX);
        const until = Math.min(last, right);
        for (let each = Math.max(Math.floor(beforeX), left); each <= until; each += 1) {
          cover(each, beforeY + slope * (Math.max(each, beforeX) - beforeX),
            beforeY + slope * (Math.min(each + 1, px) - beforeX));
        }
      }
      [beforeX, beforeY] = [px, py];
    }
    fill();
  }

  function drawDot(u, px, py, radius) {
    u.ctx.beginPath();
    u.ctx.arc(px, py, radius * devicePixelRatio, 0, 2 * Math.PI);
    u.ctx.fill();
  }

  function drawCross(u, px, py) {
    const half = 3.5 * devicePixelRatio;
    u.ctx.beginPath();
    u.ctx.moveTo(px - half, py - half);
    u.ctx.lineTo(px + half, py + half);
    u.ctx.moveTo(px + half, py - half);
    u.ctx.lineTo(px - half, py + half);
    u.ctx.stroke();
  }

  // ---- the component

  return function makeCurves(root, initial) {
    const state = { by: "step", weight: 0, hidden: new Set(), zoom: null, isPanning: false };
    let [runs, panels, longest] = [[], [], 1];
    const several = () => runs.length > 1;

    // ---- controls

    const axes = element("fieldset", { className: "switch", id: "axes" });
    const slider = element("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01 });
    const weight = element("output", { id: "weight" });
    weight.htmlFor.add("smoothing");
    const reset = element("button", { type: "button", id: "reset", textContent: "reset zoom" });
    const chips = element("fieldset", { className: "chips", id: "chips" });
    const space = element("div", { id: "panels" });
    root.replaceChildren(
      element("div", { className: "bar" }, axes,
        element("label", { className: "slider" }, "smoothing ", slider, weight), reset),
      chips, space,
    );
    const chip = (type, name, label, checked, changed) => {
      const input = element("input", { type, name, checked });
      input.addEventListener("change", () => changed(input.checked));
      return element("label", {}, input, element("span", { textContent: label }));
    };
    const showWeight = () => {
      slider.value = state.weight;
      weight.textContent = state.weight ? state.weight.toFixed(2) : "off";
    };
    let asked = 0;
    const drawSoon = () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(() => panels.forEach(draw));
    };
    slider.addEventListener("input", () => {
      state.weight = Number(slider.value);
      showWeight();
      for (const panel of panels) panel.lines = null;
      drawSoon();
    });
    reset.addEventListener("click", () => zoom(null));

    // ---- data

    // Replace the data; which panels are shown, their axes and the zoom stay as they are.
    function update(data, { isFirst = false } = {}) {
      const before = new Map(panels.map((panel) => [panel.metrics[0], panel]));
      runs = data.runs.map((run) => ({ ...run, metrics: new Map(Object.entries(run.metrics)) }));
      longest = 1;
      for (const run of runs) {
        for (const metric of run.metrics.values()) {
          metric.values = metric.values.map(Number);
          longest = Math.max(longest, metric.values.length);
        }
      }
      if (isFirst) {
        state.by = data.axes[0] || "step";
        state.weight = data.smoothing;
        showWeight();
      }
      panels = data.panels.map((panel) => {
        const old = before.get(panel.metrics[0]);
        const kept = old
          ? { log: old.log, shown: old.shown, whole: old.whole, box: old.box, plot: old.plot,
            note: old.note, tip: old.tip, near: old.near, u: old.u, toggle: old.toggle }
          : {};
        const made = { ...panel, ...kept, lines: null };
        if (old) old.replacedBy = made;
        else build(made);
        return made;
      });
      for (const [key, old] of before) {
        if (!panels.some((panel) => panel.metrics[0] === key)) old.u?.destroy();
      }
      fillControls(data);
      arrange();
      panels.forEach(describe);
      panels.forEach(draw);
    }

    function fillControls(data) {
      axes.replaceChildren(element("legend", { textContent: "over" }));
      for (const by of data.axes) {
        axes.append(chip("radio", "by", AXIS_TITLES[by], by === state.by, () => {
          state.by = by;
          state.zoom = null;
          for (const panel of panels) panel.lines = null;
          panels.forEach(draw);
        }));
      }
      axes.hidden = data.axes.length < 2;
      if (chips.children.length === panels.length + 1) return;
      chips.replaceChildren(element("legend", { className: "hidden", textContent: "metrics that are shown" }));
      for (const { metrics, title, unit, shown } of panels) {
        const label = title + (unit ? `, ${unit}` : "");
        chips.append(chip("checkbox", "metric", label, shown, (on) => {
          const panel = panels.find((each) => each.metrics[0] === metrics[0]);
          panel.shown = on;
          arrange();
          draw(panel);
        }));
      }
    }

    function axisOf(panel) {
      const shown = runs.flatMap((run) => panel.metrics.filter((name) => run.metrics.has(name))
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
      const most = Math.max(...runs.flatMap((run) => run.axes.map((axis) => axis.time?.at(-1) ?? 0)));
      if (most > 2 * 86400) return [86400, "days"];
      if (most > 7200) return [3600, "hours"];
      return most > 120 ? [60, "minutes"] : [1, "seconds"];
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

    function xRange(panel) {
      const by = axisOf(panel);
      return state.zoom && state.zoom.by === by ? state.zoom.range : wholeRange(panel, by);
    }

    // The lines of a panel: places, values, their smoothed values, and where they are not finite.
    function linesOf(panel) {
      if (panel.lines) return panel.lines;
      const by = axisOf(panel);
      const unit = by === "time" ? timeUnit()[0] : 1;
      panel.lines = runs.flatMap((run, number) => panel.metrics
        .filter((name) => run.metrics.has(name) && !state.hidden.has(number))
        .map((name) => {
          const { values } = run.metrics.get(name);
          const x = unit === 1 ? places(run, name, by) : places(run, name, by).map((at) => at / unit);
          const place = panel.metrics.indexOf(name);
          // Over as long a part of the run as the longest line: a line of few points is smoothed
          // less.
          const own = panel.smooth ? state.weight ** (longest / values.length) : 0;
          const isFew = values.length <= MARKED_POINTS;
          return {
            x, y: values, isFew, index: several() ? number : place,
            label: several() ? run.name : panel.labels[place],
            trend: own > 0.01 && !isFew ? ewma(values, own) : null,
            broken: brokenPoints(x, values),
          };
        }));
      return panel.lines;
    }

    // Values that are not finite, at the height of the last one that was.
    function brokenPoints(x, values) {
      const found = [];
      let height = values.find(Number.isFinite) ?? 0;
      values.forEach((value, at) => {
        if (Number.isFinite(value)) height = value;
        else found.push([x[at], height]);
      });
      return found;
    }

    // The range of the visible values. Outliers that the server cut off stay cut off.
    function yRange(panel, [from, to]) {
      const cut = panel.range && !panel.whole ? panel.range : null;
      if (cut && !state.zoom) return cut;
      let [low, high] = [Infinity, -Infinity];
      for (const { x, y } of linesOf(panel)) {
        const end = Math.min(lowerBound(x, to) + 1, x.length);
        for (let at = Math.max(lowerBound(x, from) - 1, 0); at < end; at += 1) {
          const value = y[at];
          if (!Number.isFinite(value) || (panel.log && value <= 0)) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
      if (low > high) return cut || (panel.log ? [0.1, 1] : [0, 1]);
      if (cut && Math.max(low, cut[0]) < Math.min(high, cut[1])) {
        [low, high] = [Math.max(low, cut[0]), Math.min(high, cut[1])];
      }
      if (panel.log) {
        const margin = (high / low) ** 0.04;
        return low === high ? [low / 2, high * 2] : [low / margin, high * margin];
      }
      const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
      return [low - margin, high + margin];
    }

    // ---- one panel

    function build(panel) {
      const current = () => panels.find((each) => each.plot === panel.plot) || panel;
      panel.toggle = element("button", { type: "button", textContent: "log", title: "logarithmic axis" });
      panel.toggle.setAttribute("aria-pressed", String(panel.log));
      panel.toggle.addEventListener("click", () => {
        const own = current();
        own.log = !own.log;
        own.toggle.setAttribute("aria-pressed", String(own.log));
        own.u?.destroy();
        own.u = null;
        draw(own);
      });
      panel.note = element("span", { className: "quiet" });
      panel.tip = element("div", { className: "tip", hidden: true });
      panel.plot = element("div", { className: "plot", tabIndex: 0 }, panel.tip);
      panel.plot.setAttribute("role", "group");
      panel.plot.setAttribute("aria-label", `${panel.title}: curve; the tables have its values`);
      panel.plot.addEventListener("keydown", (event) => move(event, current()));
      panel.plot.addEventListener("dblclick", () => zoom(null));
      enablePanning(panel.plot, current);
      const heading = element("h3", { textContent: panel.title });
      if (panel.unit) heading.append(element("span", { className: "quiet", textContent: ` ${panel.unit}` }));
      panel.box = element("section", { className: "panel" },
        element("header", {}, heading, panel.note, panel.toggle), panel.plot);
      panel.box.dataset.metric = panel.metrics[0];
      new ResizeObserver(() => {
        const own = current();
        if (own.u) own.u.setSize({ width: own.plot.clientWidth, height: own.plot.clientHeight });
      }).observe(panel.plot);
    }

    function describe(panel) {
      panel.note.replaceChildren();
      if (panel.metrics.length > 1) {
        panel.labels.forEach((label, place) => {
          const swatch = element("span", { className: "swatch" });
          paintSwatch(swatch, place);
          panel.note.append(element("span", { className: "key" }, swatch, label.toLowerCase()));
        });
      }
      if (panel.beyond && !panel.whole) {
        const all = element("button", { type: "button",
          textContent: `${panel.beyond} beyond this axis: show` });
        all.addEventListener("click", () => {
          const own = panels.find((each) => each.plot === panel.plot) || panel;
          own.whole = true;
          describe(own);
          draw(own);
        });
        panel.note.append(all);
      }
    }

    // A panel out of sight waits until it is scrolled to.
    function draw(panel) {
      if (!panel.near || !panel.shown || !panel.plot.clientWidth) return;
      const x = xRange(panel);
      const y = yRange(panel, x);
      panel.bounds = { x, y };
      panel.plot.lines = linesOf(panel);
      if (panel.u && panel.u.by !== axisOf(panel)) {
        panel.u.destroy();
        panel.u = null;
      }
      if (!panel.u) panel.u = makePlot(panel);
      else panel.u.setData([x, y]);
      panel.plot.uplot = panel.u;
    }

    function makePlot(panel) {
      const current = () => panels.find((each) => each.plot === panel.plot) || panel;
      const by = axisOf(panel);
      const quiet = colour("--quiet");
      const grid = { stroke: colour("--grid"), width: 1 };
      const title = by === "time" ? `wall time (${timeUnit()[1]})` : AXIS_TITLES[by];
      const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
      const made = new uPlot({
        width: panel.plot.clientWidth,
        height: panel.plot.clientHeight,
        legend: { show: false },
        padding: [14, 14, 0, 0],
        cursor: {
          y: false, points: { show: false },
          drag: { x: !matchMedia("(pointer: coarse)").matches, y: false, setScale: false },
          bind: { dblclick: () => null },
        },
        scales: {
          x: { time: false, range: () => current().bounds.x },
          y: { distr: panel.log ? 3 : 1, range: () => current().bounds.y },
        },
        axes: [
          { stroke: quiet, grid, ticks: grid, font: FONT, labelFont: FONT, label: title, labelSize: 18,
            size: 30, incrs: by === "time" ? undefined : stepIncrements(),
            values: (_, ticks) => (by === "tokens" ? ticks.map((tick) => compact.format(tick)) : formatTicks(ticks)) },
          { stroke: quiet, grid, ticks: grid, font: FONT, size: 62,
            ...(panel.log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, ticks) => ticks } : {}),
            values: (_, ticks) => (panel.log ? ticks.map((tick) => formatTick(tick, 0)) : formatTicks(ticks)) },
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(u) => paint(u, current())],
          setCursor: [(u) => showValues(u, current())],
          setSelect: [(u) => {
            if (u.select.width > 3) {
              zoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")],
                axisOf(current()));
            }
            if (u.select.width) u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          }],
        },
      }, [panel.bounds.x, panel.bounds.y], panel.plot);
      made.by = by;
      return made;
    }

    // Steps are whole numbers.
    function stepIncrements() {
      const found = [];
      for (let power = 0; power < 16; power += 1) {
        found.push(1 * 10 ** power, 2 * 10 ** power, ...(power ? [2.5 * 10 ** power] : []), 5 * 10 ** power);
      }
      return found;
    }

    function paint(u, panel) {
      const { ctx, bbox } = u;
      const ratio = devicePixelRatio;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.lineJoin = "bevel";
      drawRestarts(u, panel);
      const toX = pixels(u, "x", false);
      const toY = pixels(u, "y", panel.log);
      const { min, max } = u.scales.x;
      const lines = linesOf(panel);
      for (const { x, y, trend, isFew, index, broken } of lines) {
        const begin = Math.max(lowerBound(x, min) - 1, 0);
        const end = Math.min(lowerBound(x, max) + 1, x.length);
        ctx.strokeStyle = lineColour(index);
        ctx.fillStyle = ctx.strokeStyle;
        ctx.setLineDash(lineDash(index).map((part) => part * ratio));
        // The noise of many runs would cover their smoothed lines, and take long to draw.
        if (!trend || lines.length <= MAX_NOISY_LINES) {
          ctx.globalAlpha = trend ? 0.3 : 1;
          ctx.lineWidth = (trend ? 1 : 1.7) * ratio;
          const dense = lines.length > MAX_NOISY_LINES ? DENSE_OF_MANY : DENSE;
          if (end - begin > dense * bbox.width) drawBars(u, x, y, begin, end, toX, toY, ctx.lineWidth);
          else drawLine(u, x, y, begin, end, toX, toY, 1);
          ctx.globalAlpha = 1;
        }
        if (trend) {
          ctx.lineWidth = 1.7 * ratio;
          drawLine(u, x, trend, begin, end, toX, toY, lines.length > MAX_NOISY_LINES ? 3 : 1);
        }
        ctx.setLineDash([]);
        if (isFew) {
          for (let at = begin; at < end; at += 1) {
            if (Number.isFinite(y[at])) drawDot(u, toX(x[at]), toY(y[at]), 3);
          }
        }
        ctx.strokeStyle = colour("--alarm");
        ctx.lineWidth = 1.7 * ratio;
        for (const [at, height] of broken) {
          if (at >= min && at <= max) drawCross(u, toX(at), toY(height));
        }
      }
      ctx.restore();
    }

    function drawRestarts(u, panel) {
      if (axisOf(panel) !== "step") return;
      const { ctx, bbox } = u;
      runs.forEach((run, number) => {
        if (state.hidden.has(number)) return;
        const isNamed = !several() && run.restarts.length <= NAMED_RESTARTS;
        for (const restart of run.restarts) {
          const px = u.valToPos(restart.at, "x", true);
          ctx.strokeStyle = several() ? lineColour(number) : colour("--quiet");
          ctx.lineWidth = devicePixelRatio;
          ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
          ctx.beginPath();
          ctx.moveTo(px, bbox.top);
          ctx.lineTo(px, bbox.top + bbox.height);
          ctx.stroke();
          if (isNamed) {
            ctx.fillStyle = colour("--quiet");
            ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
            ctx.textAlign = "left";
            ctx.textBaseline = "top";
            ctx.fillText("restart", px + 4 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
          }
        }
      });
      ctx.setLineDash([]);
    }

    // The values of all lines at the pointer, nearest to its place.
    function showValues(u, panel) {
      const { left } = u.cursor;
      const lines = linesOf(panel).filter((line) => line.x.length);
      // Building the list for each mouse movement would slow down panning.
      panel.tip.hidden = state.isPanning || left === null || left < 0 || !lines.length;
      if (panel.tip.hidden) return;
      const by = axisOf(panel);
      const at = u.posToVal(left, "x");
      const found = lines.map((line) => ({ line, index: nearest(line.x, at) }));
      const centre = found.map(({ line, index }) => line.x[index])
        .reduce((best, x) => (Math.abs(x - at) < Math.abs(best - at) ? x : best));
      const tell = (x) => (by === "time" ? `${Number(x.toPrecision(4))} ${timeUnit()[1]}`
        : `${AXIS_NAMES[by]} ${x.toLocaleString("en")}`);
      const rows = found.slice(0, TOOLTIP_ROWS).map(({ line, index }) => {
        const swatch = element("span", { className: "swatch" });
        paintSwatch(swatch, line.index);
        let text = String(line.y[index]);
        if (line.trend) text += ` (smoothed ${Number(line.trend[index].toPrecision(5))})`;
        if (line.x[index] !== centre && by !== "time") text += ` at ${tell(line.x[index])}`;
        return element("div", {}, swatch, element("span", { textContent: line.label }),
          element("b", { textContent: text }));
      });
      if (found.length > TOOLTIP_ROWS) {
        rows.push(element("div", { className: "quiet", textContent: `and ${found.length - TOOLTIP_ROWS} more lines` }));
      }
      const restart = by === "step" && !several()
        && runs[0].restarts.find((each) => Math.abs(u.valToPos(each.at, "x") - left) < 6);
      if (restart) rows.push(element("div", { className: "quiet", textContent: restart.text }));
      panel.tip.replaceChildren(element("div", { className: "place", textContent: tell(centre) }), ...rows);
      const room = panel.plot.clientWidth;
      const place = left + u.bbox.left / devicePixelRatio;
      const isLeft = place > room / 2;
      panel.tip.style.left = isLeft ? "auto" : `${place + 14}px`;
      panel.tip.style.right = isLeft ? `${room - place + 14}px` : "auto";
    }

    // ---- zoom

    // All panels over the same axis show the same part of it; null: the whole.
    function zoom(range, by) {
      state.zoom = range && { range, by };
      drawSoon();
    }

    function move(event, panel) {
      const shown = xRange(panel);
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

    // Dragging with the shift key pressed moves the visible part.
    function enablePanning(plot, current) {
      plot.addEventListener("mousedown", (event) => {
        if (!event.shiftKey || event.button !== 0 || !current().u) return;
        event.preventDefault();
        event.stopPropagation();
        const panel = current();
        const range = xRange(panel);
        const scale = (range[1] - range[0]) / (panel.u.bbox.width / devicePixelRatio);
        const by = axisOf(panel);
        const pan = (to) => zoom(range.map((end) => end - (to.clientX - event.clientX) * scale), by);
        state.isPanning = true;
        panel.tip.hidden = true;
        const stop = () => {
          state.isPanning = false;
          removeEventListener("mousemove", pan);
          removeEventListener("mouseup", stop);
        };
        addEventListener("mousemove", pan);
        addEventListener("mouseup", stop);
      }, { capture: true });
    }

    // ---- layout

    const sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const panel = panels.find((each) => each.box === entry.target);
        if (!panel) continue;
        panel.near = entry.isIntersecting;
        if (panel.near) draw(panel);
      }
    }, { rootMargin: "300px" });

    function arrange() {
      const shown = panels.filter((panel) => panel.shown);
      const boxes = shown.map((panel) => panel.box);
      const isSame = boxes.length === space.children.length
        && boxes.every((box, index) => space.children[index] === box);
      if (!isSame) space.replaceChildren(...boxes);
      for (const panel of panels) {
        if (panel.shown) sight.observe(panel.box);
        else if (!panel.shown) {
          sight.unobserve(panel.box);
          panel.near = false;
        }
      }
    }

    // The colours are those of the theme.
    function repaint() {
      for (const panel of panels) {
        panel.u?.destroy();
        panel.u = null;
        describe(panel);
        draw(panel);
      }
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    // Panels that were never scrolled to are printed, too.
    addEventListener("beforeprint", () => {
      for (const panel of panels) panel.near = panel.shown;
      panels.forEach(draw);
    });
    update(initial, { isFirst: true });
    return {
      update,
      hide(numbers) {
        state.hidden = new Set(numbers);
        for (const panel of panels) panel.lines = null;
        drawSoon();
      },
      close() {
        for (const panel of panels) panel.u?.destroy();
        sight.disconnect();
        matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", repaint);
      },
    };
  };
})();
