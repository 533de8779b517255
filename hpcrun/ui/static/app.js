// The page of hpcrun ui. Everything that comes from runs is untrusted: it is only ever set as
// textContent or as an attribute without meaning for scripts, never as markup.
"use strict";
(() => {
  const view = document.getElementById("view");
  const SHOWN_ROWS = 200;
  const GOOD = ["COMPLETED", "PRUNED"];
  const ACTIVE = ["RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING"];
  const rows = new Map();
  let order = [];
  let isReady = false;
  let hasActions = false;
  let version = 0;
  let source = null;
  let leave = () => {};
  let onRows = () => {};
  let onCurve = () => {};
  const chosen = new Set();
  const table = { words: "", state: "all", sort: "order", falls: true, all: false };

  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };
  const text = (name, content, className = "") => element(name, { textContent: content, className });
  const link = (to, content, className = "") => element("a", { href: to, textContent: content, className });
  const runLink = (row) => `#/${row.kind === "sweep" ? "sweep" : "run"}/${encodeURIComponent(row.key)}`;

  async function get(path, parameters = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
      for (const each of Array.isArray(value) ? value : [value]) query.append(name, each);
    }
    const answer = await fetch(`api/${path}?${query}`);
    const found = await answer.json().catch(() => ({ error: `error ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error + (found.fix ? ` (${found.fix})` : ""));
    return found;
  }

  function showError(place, error) {
    place.replaceChildren(text("p", error.message, "error"));
    place.firstChild.setAttribute("role", "alert");
  }

  // ---- numbers and times

  function formatDuration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    const [d, h, m] = [86400, 3600, 60];
    if (seconds >= d) return `${Math.floor(seconds / d)}d ${Math.floor((seconds % d) / h)}h`;
    if (seconds >= h) return `${Math.floor(seconds / h)}h ${Math.floor((seconds % h) / m)}m`;
    if (seconds >= m) return `${Math.floor(seconds / m)}m ${Math.floor(seconds % m)}s`;
    return `${Math.floor(seconds)}s`;
  }

  function formatAge(moment) {
    if (!moment) return "";
    const age = Date.now() / 1000 - moment;
    return age < 60 ? "now" : `${formatDuration(age).split(" ")[0]} ago`;
  }

  const formatNumber = (value) => {
    if (value === null || value === undefined || value === "") return "";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  };

  function formatSize(bytes) {
    const units = ["B", "KB", "MB", "GB", "TB"];
    let power = 0;
    for (; bytes >= 1000 && power < units.length - 1; power += 1) bytes /= 1000;
    return `${power ? bytes.toFixed(1) : bytes} ${units[power]}`;
  }

  function kindOf(row) {
    if (!row.state) return "none";
    if (GOOD.includes(row.state)) return "ok";
    if (ACTIVE.includes(row.state)) return "run";
    if (!row.final) return "wait";
    return row.state === "CANCELLED" ? "none" : "bad";
  }

  const pill = (row) => (row.state ? text("span", row.state.toLowerCase().replaceAll("_", " "), `pill ${kindOf(row)}`) : null);

  function remarkOf(row) {
    if (row.states && row.kind === "sweep") {
      return Object.entries(row.states).map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ");
    }
    return row.why || row.remark || row.reason || "";
  }

  // The values of a sweep's run, and the arguments in which runs of the same job differ.
  const valuesOf = (row) => Object.entries({ ...row.changed, ...row.values }).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${value}`).join(" ");

  // ---- events of the server

  function connect(keys = []) {
    source?.close();
    const query = new URLSearchParams({ since: version });
    for (const key of keys) query.append("key", key);
    source = new EventSource(`api/events?${query}`);
    source.addEventListener("rows", (event) => take(JSON.parse(event.data)));
    source.addEventListener("curve", () => onCurve());
    source.onerror = () => setTrouble("the connection to hpcrun ui was lost; is it still running?");
    source.onopen = () => setTrouble(null);
  }

  function setTrouble(message) {
    const place = document.getElementById("trouble");
    place.hidden = !message;
    place.textContent = message || "";
  }

  function take(news) {
    version = news.version;
    isReady = isReady || news.is_ready;
    hasActions = news.actions;
    for (const row of news.rows) rows.set(row.key, { ...row, haystack: haystackOf(row) });
    if (news.keys) { // null: the same rows in the same order
      order = news.keys;
      const known = new Set(order);
      for (const key of rows.keys()) if (!known.has(key)) rows.delete(key);
    }
    document.getElementById("cluster").textContent = [news.cluster, news.host].filter(Boolean).join(" on ");
    setTrouble(news.trouble && `Slurm cannot be reached: ${news.trouble}`);
    onRows();
  }

  const haystackOf = (row) => [row.name, row.id, row.job_id, row.run_id, row.sweep_id, row.state, row.project,
    row.cluster, valuesOf(row), remarkOf(row)].filter(Boolean).join(" ").toLowerCase();

  // ---- the table of runs

  const COLUMNS = [
    { id: "state", title: "State", value: (row) => row.state, cell: (row) => pill(row) },
    { id: "name", title: "Name", value: (row) => row.name || row.id, isHead: true,
      cell: (row) => link(runLink(row), row.name || row.id) },
    { id: "job", title: "Job", value: (row) => Number(String(row.job_id || "").split("_")[0]) || 0,
      text: (row) => row.job_id || "", wide: true },
    { id: "project", title: "Project", value: (row) => row.project, text: (row) => row.project || "",
      isOptional: true, wide: true },
    { id: "order", title: "Submitted", value: (row) => row.submitted_at,
      text: (row) => formatAge(row.submitted_at), falls: true },
    { id: "time", title: "Time", value: (row) => row.elapsed_seconds, text: (row) => formatDuration(row.elapsed_seconds),
      isNumber: true, wide: true },
    { id: "gpus", title: "GPUs", value: (row) => (row.nodes || 0) * (row.gpus_per_node || 0),
      text: (row) => formatNumber((row.nodes || 0) * (row.gpus_per_node || 0) || ""), isNumber: true, wide: true },
    { id: "step", title: "Step", value: (row) => row.step, text: (row) => formatNumber(row.step), isNumber: true },
    { id: "loss", title: "Loss", value: (row) => (typeof row.loss === "number" ? row.loss : null),
      text: (row) => formatNumber(row.loss), isNumber: true },
    { id: "hours", title: "GPU hours", value: (row) => row.gpu_hours, text: (row) => formatNumber(row.gpu_hours),
      isNumber: true, isOptional: true, wide: true },
    { id: "values", title: "Values", value: valuesOf, text: valuesOf, isOptional: true, wide: true },
    { id: "remark", title: "Remark", value: remarkOf, text: remarkOf, className: "text", wide: true },
  ];

  const STATES = {
    all: () => true, active: (row) => !row.final, running: (row) => ACTIVE.includes(row.state),
    failed: (row) => row.final && row.state && ![...GOOD, "CANCELLED"].includes(row.state),
    completed: (row) => GOOD.includes(row.state),
  };

  function matching() {
    const words = table.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = order.map((key) => rows.get(key)).filter(Boolean)
      .filter((row) => STATES[table.state](row) && words.every((word) => row.haystack.includes(word)));
    const column = COLUMNS.find((each) => each.id === table.sort);
    if (table.sort === "order") return table.falls ? found : found.reverse();
    const sign = table.falls ? -1 : 1;
    return found.map((row) => [row, column.value(row)]).sort(([, a], [, b]) => {
      const [hasA, hasB] = [a !== null && a !== undefined && a !== "", b !== null && b !== undefined && b !== ""];
      if (!hasA || !hasB) return Number(hasB) - Number(hasA); // rows without a value come last
      return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    }).map(([row]) => row);
  }

  function showRuns() {
    const search = element("input", { type: "search", id: "search", placeholder: "Filter: name, state, job, value", value: table.words });
    search.setAttribute("aria-label", "Filter the runs");
    const states = element("select", { id: "states" }, ...Object.keys(STATES).map((state) =>
      element("option", { value: state, textContent: state === "all" ? "all states" : state, selected: state === table.state })));
    states.setAttribute("aria-label", "State");
    const curves = element("button", { type: "button", id: "show-curves" });
    const count = text("span", "", "quiet");
    count.setAttribute("role", "status");
    const head = element("tr");
    const body = element("tbody");
    const more = element("button", { type: "button", id: "more" });
    const holder = element("div", { className: "wide runs", tabIndex: 0 },
      element("table", { id: "runs" }, element("thead", {}, head), body));
    holder.setAttribute("role", "region");
    holder.setAttribute("aria-label", "Runs");
    view.replaceChildren(element("h1", { textContent: "Runs" }),
      element("div", { className: "tools" }, search, states, curves, count), holder,
      element("p", { className: "hint" }, more));
    const cache = new Map();
    let columns = [];
    let asked = 0;

    const build = (row) => {
      const box = element("input", { type: "checkbox", checked: chosen.has(row.key) });
      box.setAttribute("aria-label", `select ${row.name || row.id}`);
      const made = element("tr", {}, element("td", {}, box));
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(row.key);
        else chosen.delete(row.key);
        made.classList.toggle("chosen", box.checked);
        drawSoon();
      });
      made.classList.toggle("chosen", box.checked);
      for (const column of columns) {
        const name = [column.isNumber ? "number" : "", column.className || "", column.wide ? "wide-only" : ""].join(" ").trim();
        const cell = element(column.isHead ? "th" : "td", { className: name });
        if (column.isHead) cell.scope = "row";
        if (column.cell) cell.append(...[column.cell(row)].filter(Boolean));
        else {
          cell.textContent = column.text(row);
          if (column.className) cell.title = column.text(row);
        }
        made.append(cell);
      }
      return made;
    };

    function draw() {
      const found = matching();
      const shown = table.all ? found : found.slice(0, SHOWN_ROWS);
      const now = COLUMNS.filter((each) => !each.isOptional || found.some((row) => each.value(row)));
      if (now.map((each) => each.id).join() !== columns.map((each) => each.id).join()) {
        columns = now;
        cache.clear();
      }
      drawHead();
      const minute = Math.floor(Date.now() / 60000);
      const trs = shown.map((row) => {
        const known = cache.get(row.key);
        if (known && known.row === row && known.minute === minute) return known.tr;
        const tr = build(row);
        cache.set(row.key, { row, minute, tr });
        return tr;
      });
      const old = [...body.children];
      const replaced = trs.map((tr, index) => index).filter((index) => old[index] !== trs[index]);
      if (trs.length === old.length && replaced.every((index) => !trs[index].isConnected && !old[index].contains(document.activeElement))) {
        for (const index of replaced) old[index].replaceWith(trs[index]);
      } else {
        const focused = document.activeElement?.closest?.("#runs tr");
        const place = focused ? [...body.children].indexOf(focused) : -1;
        body.replaceChildren(...trs);
        if (place >= 0) body.children[Math.min(place, trs.length - 1)]?.querySelector("input, a")?.focus();
      }
      if (!trs.length) {
        const message = !isReady ? "Reading the runs ..." : rows.size ? "No run matches the filter."
          : "No runs yet: hpcrun submit starts one.";
        body.replaceChildren(element("tr", {}, element("td", { colSpan: columns.length + 1, textContent: message, className: "quiet" })));
      }
      count.textContent = found.length === rows.size ? `${rows.size.toLocaleString("en")} runs`
        : `${found.length.toLocaleString("en")} of ${rows.size.toLocaleString("en")} runs`;
      more.hidden = found.length <= shown.length;
      more.textContent = `show all ${found.length.toLocaleString("en")}`;
      curves.disabled = !chosen.size;
      curves.textContent = chosen.size ? `curves of ${chosen.size} selected` : "curves of selected runs";
    }

    function drawHead() {
      const ths = columns.map((column) => {
        const sort = element("button", { type: "button", className: "sort", textContent: column.title });
        sort.addEventListener("click", () => {
          table.falls = table.sort === column.id ? !table.falls : Boolean(column.falls || (column.isNumber && column.id !== "loss"));
          table.sort = column.id;
          draw();
          head.querySelector(`[data-column="${column.id}"] button`).focus();
        });
        const th = element("th", { scope: "col", className: [column.isNumber ? "number" : "", column.wide ? "wide-only" : ""].join(" ").trim() }, sort);
        th.dataset.column = column.id;
        if (table.sort === column.id) th.setAttribute("aria-sort", table.falls ? "descending" : "ascending");
        return th;
      });
      const stamp = `${columns.map((each) => each.id).join()} ${table.sort} ${table.falls}`;
      if (head.dataset.stamp === stamp) return;
      head.dataset.stamp = stamp;
      head.replaceChildren(element("td"), ...ths);
    }

    const drawSoon = () => {
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(draw);
    };
    search.addEventListener("input", () => { table.words = search.value; drawSoon(); });
    states.addEventListener("change", () => { table.state = states.value; drawSoon(); });
    more.addEventListener("click", () => { table.all = true; draw(); });
    curves.addEventListener("click", () => {
      location.hash = `#/curves/${[...chosen].map(encodeURIComponent).join(",")}`;
    });
    onRows = drawSoon;
    draw();
    const timer = setInterval(drawSoon, 60000);
    leave = () => clearInterval(timer);
  }

  // ---- curves of one or several runs

  async function showCurves(place, keys, { isAlone, hasCause = false }) {
    place.replaceChildren(text("p", "Reading the logs ...", "quiet"));
    let shown = null;
    let isGone = false;
    let pending = null;
    leave = () => {
      isGone = true;
      shown?.close();
    };
    connect(keys);
    const parts = { remarks: element("div"), tiles: element("div"), runs: element("div"), panels: element("div"), settings: element("div") };

    async function load() {
      const data = await get("curves", { key: keys });
      if (isGone) return;
      if (hasCause) data.failures = []; // shown above
      fill(parts, data, isAlone, (hidden) => shown?.hide(hidden));
      if (!data.panels.length) {
        parts.panels.replaceChildren(text("p", "No metric was found in the log yet.", "quiet"));
      } else if (shown) {
        shown.update(data);
      } else {
        shown = makeCurves(parts.panels, data);
      }
      if (place.firstChild !== parts.remarks) place.replaceChildren(...Object.values(parts));
    }
    onCurve = () => {
      pending ??= load().catch(() => {}).finally(() => { pending = null; });
    };
    try {
      await load();
    } catch (error) {
      if (!isGone) showError(place, error);
    }
  }

  function fill(parts, data, isAlone, hide) {
    const remarks = (title, entries) => (entries.length ? element("section", { className: "warnings" },
      text("h2", title), element("ul", {}, ...entries.map(([name, remark]) =>
        element("li", {}, isAlone ? null : element("b", { textContent: `${name} ` }), remark)))) : null);
    parts.remarks.replaceChildren(...[remarks("Why it failed", data.failures), remarks("Warnings", data.warnings)].filter(Boolean));
    parts.tiles.replaceChildren(...(data.tiles.length ? [element("dl", { className: "tiles" }, ...data.tiles.map(([name, value, rest]) =>
      element("div", {}, text("dt", name), element("dd", {}, value, rest ? element("small", { textContent: ` ${rest}` }) : null))))] : []));
    if (!isAlone && data.runs.length > 1 && !parts.runs.children.length) {
      const boxes = [];
      const bodies = data.runs.map((run, index) => {
        const swatch = element("span", { className: `swatch s${index % 8} d${Math.floor(index / 8) % 4}` });
        const box = element("input", { type: "checkbox", checked: true });
        box.addEventListener("change", () => hide(boxes.flatMap((each, at) => (each.checked ? [] : [at]))));
        boxes.push(box);
        const to = link(`#/run/${encodeURIComponent(data.keys[index])}`, run.name);
        return element("tr", {}, element("th", { scope: "row" }, element("label", {}, box, swatch), to),
          ...data.table.rows[index].map((cell) => text("td", cell)));
      });
      parts.runs.replaceChildren(element("div", { className: "wide some", tabIndex: 0 }, element("table", { id: "runs-table" },
        element("thead", {}, element("tr", {}, text("th", "run"), ...data.table.headings.map((each) => text("th", each)))),
        element("tbody", {}, ...bodies))));
    }
    if (!isAlone && data.settings.differ.length && !parts.settings.children.length) {
      parts.settings.replaceChildren(text("h2", "Where the runs differ"),
        makeTable(["setting", ...data.runs.map((run) => run.name)], data.settings.differ));
    }
  }

  function makeTable(headings, entries) {
    return element("div", { className: "wide", tabIndex: 0 }, element("table", { className: "settings" },
      element("thead", {}, element("tr", {}, ...headings.map((each) => element("th", { scope: "col", textContent: each })))),
      element("tbody", {}, ...entries.map(([first, ...rest]) => element("tr", {},
        element("th", { scope: "row", textContent: first }), ...rest.map((cell) => text("td", formatNumber(cell))))))));
  }

  // ---- one run

  async function showRun(key, tab) {
    const place = element("div");
    const head = element("h1", { textContent: rows.get(key)?.name || key });
    const facts = text("p", "", "facts");
    const tabs = element("nav", { className: "tabs" });
    tabs.setAttribute("aria-label", "Parts of this run");
    const actions = element("div", { className: "tools" });
    view.replaceChildren(head, facts, actions, tabs, place);
    let isGone = false;
    leave = () => { isGone = true; };
    let detail = null;
    try {
      detail = await get("detail", { key });
    } catch (error) {
      if (!isGone) showError(place, error);
      return;
    }
    if (isGone) return;
    const run = detail.runs[0] || {};
    const names = { curves: "Curves", log: "Log", attempts: "Attempts", settings: "Settings", script: "Script", use: "GPU use" };
    const has = { curves: true, log: true, attempts: (run.attempts || []).length > 0,
      settings: Object.keys(detail.facts).length > 0 || originOf(run).length > 0, script: Boolean(detail.script), use: Boolean(detail.has_use) };
    for (const [name, title] of Object.entries(names)) {
      if (!has[name]) continue;
      const to = link(`#/run/${encodeURIComponent(key)}/${name}`, title);
      if (name === tab) to.setAttribute("aria-current", "page");
      tabs.append(to);
    }
    const fillHead = () => {
      const row = { ...run, ...(rows.get(key) || {}) };
      head.replaceChildren(row.name || key.replace(/^file:/, ""), ...[pill(row)].filter(Boolean));
      const stamp = `${row.state} ${row.final} ${hasActions}`;
      if (actions.dataset.stamp !== stamp) {
        actions.dataset.stamp = stamp;
        actions.replaceChildren(...actionButtons(key, row, row.name || key));
      }
      const summary = [
        ["job", row.job_id], ["step", formatNumber(row.step)], ["loss", formatNumber(row.loss)],
        ["time", formatDuration(row.elapsed_seconds) + (row.limit_seconds ? ` of ${formatDuration(row.limit_seconds)}` : "")],
        ["nodes", row.nodes], ["GPUs per node", row.gpus_per_node], ["GPU hours", formatNumber(row.gpu_hours)], ["price", detail.price],
        ["values", valuesOf(row)], ["node list", run.node_list], ["partition", run.partition], ["user", run.user],
        ["remark", remarkOf(row)], ["folder", row.run_dir || run.work_dir],
      ].filter(([, value]) => value);
      facts.replaceChildren(...summary.map(([name, value]) => element("span", {}, `${name} `, element("b", { textContent: value }))));
    };
    fillHead();
    onRows = fillHead;
    const { cause, fixes = [] } = run.diagnosis || {};
    const show = { curves: () => showCurves(place, [key], { isAlone: true, hasCause: Boolean(cause) }),
      log: () => showLog(place, key, detail.files, () => (rows.get(key) || run).final),
      use: () => showUse(place, key, () => (rows.get(key) || run).final),
      attempts: () => place.replaceChildren(...[attemptsTable(run), detail.cost && text("p", detail.cost, "facts")].filter(Boolean)),
      settings: () => place.replaceChildren(makeTable(["origin", "value"], originOf(run)), makeTable(["setting", "value"], Object.entries(detail.facts))),
      script: () => place.replaceChildren(element("pre", { className: "script", textContent: detail.script, tabIndex: 0 })) };
    if (cause) {
      facts.after(listOf("Why it failed", [cause.title || cause.text, ...fixes.slice(0, 2).map((fix) => `Fix: ${fix}`)]));
    }
    (show[tab] || show.curves)();
  }

  const listOf = (title, texts) => element("section", { className: "warnings" }, text("h2", title),
    element("ul", {}, ...texts.map((each) => text("li", each))));

  // Who submitted the run, and from which state of the project.
  function originOf(run) {
    const origin = run.provenance || {};
    const commit = origin.git_commit && `${origin.git_commit}${origin.git_dirty ? ", with uncommitted changes" : ""}`;
    return [["submitted by", origin.user], ["project", origin.project], ["commit", commit],
      ["command", origin.command], ["hpcrun", origin.hpcrun_version]].filter(([, value]) => value);
  }

  // The use of GPUs and nodes over time.
  async function showUse(place, key, isFinal) {
    place.replaceChildren(text("p", "Reading the records ...", "quiet"));
    let shown = null;
    let isGone = false;
    const load = async () => {
      const data = await get("use", { key });
      if (isGone) return;
      if (shown) {
        shown.update(data);
        return;
      }
      const panels = element("div");
      const names = data.runs.map((run, index) => element("span", { className: "key" },
        element("span", { className: `swatch s${index % 8} d${Math.floor(index / 8) % 4}` }), run.name));
      place.replaceChildren(element("p", { className: "facts" }, ...names, data.note), panels);
      shown = makeCurves(panels, data);
    };
    const timer = setInterval(() => { if (!document.hidden && !isFinal()) load().catch(() => {}); }, 30000);
    leave = () => {
      isGone = true;
      clearInterval(timer);
      shown?.close();
    };
    try {
      await load();
    } catch (error) {
      if (!isGone) showError(place, error);
    }
  }

  // The buttons that change a job; each asks first.
  function actionButtons(key, row, name) {
    if (!hasActions || !row.state) return [];
    const verbs = row.final ? (row.kind === "job" ? [] : ["resubmit"]) : ["cancel", "requeue"];
    return verbs.map((verb) => {
      const made = element("button", { type: "button", id: verb, textContent: verb });
      made.addEventListener("click", () => confirmAction(verb, key, name));
      return made;
    });
  }

  function confirmAction(verb, key, name) {
    const effects = { cancel: "The job ends, and is not restarted.", requeue: "The job is stopped, and restarts under its own id.",
      resubmit: "A new run of the same job is submitted; it resumes from its checkpoints." };
    const result = text("p", effects[verb]);
    result.setAttribute("role", "status");
    const no = element("button", { type: "button", textContent: "back" });
    const yes = element("button", { type: "button", id: "confirm", textContent: `${verb} ${name}` });
    const box = element("dialog", {}, text("h2", `${verb} ${name}?`), result, element("div", { className: "tools" }, no, yes));
    box.setAttribute("aria-label", `${verb} ${name}`);
    no.addEventListener("click", () => box.close());
    box.addEventListener("close", () => box.remove());
    yes.addEventListener("click", async () => {
      yes.disabled = true;
      result.textContent = "Waiting for Slurm ...";
      const answer = await fetch("api/act", { method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify({ verb, key }) }).catch(() => null);
      const found = await answer?.json().catch(() => null);
      result.textContent = found?.message || `${found?.error || "no answer"}${found?.fix ? ` (${found.fix})` : ""}`;
      yes.hidden = true;
      no.textContent = "close";
    });
    document.body.append(box);
    box.showModal();
    no.focus();
  }

  function attemptsTable(run) {
    const entries = run.attempts.map((each) => {
      const seconds = each.begin && each.end ? each.end.ended_at - each.begin.begun_at : null;
      return [String(each.index), each.begin ? new Date(each.begin.begun_at * 1000).toLocaleString() : "",
        each.begin?.nodes ? String(each.begin.nodes) : "", seconds ? formatDuration(seconds) : "",
        each.first_step === undefined || each.first_step === null ? "" : `${each.first_step} to ${each.last_step}`,
        each.end ? String(each.end.why || each.end.exit_code) : "running"];
    });
    return makeTable(["attempt", "began", "nodes", "time", "steps", "ended by"], entries);
  }

  // ---- logs

  const SGR = /\x1b\[([0-9;]*)m|\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b./g;
  const CONTROL = /[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g;

  // A line of a log with the colours of its escape sequences, and with marks around a text.
  function renderLine(line, find) {
    const made = document.createDocumentFragment();
    let [at, classes] = [0, new Set()];
    const put = (piece) => {
      const clean = piece.replace(CONTROL, "\ufffd");
      if (!clean) return;
      const holder = classes.size ? element("span", { className: [...classes].join(" ") }) : made;
      addMarked(holder, clean, find);
      if (holder !== made) made.append(holder);
    };
    for (const found of line.matchAll(SGR)) {
      put(line.slice(at, found.index));
      at = found.index + found[0].length;
      if (found[1] === undefined) continue;
      const codes = found[1].split(";").map(Number);
      for (let index = 0; index < codes.length; index += 1) {
        const code = codes[index];
        if (code === 0) classes = new Set();
        else if (code === 1) classes.add("bold");
        else if (code === 2) classes.add("dim");
        else if (code === 22) { classes.delete("bold"); classes.delete("dim"); }
        else if (code === 38 || code === 48) index += codes[index + 1] === 5 ? 2 : 4;
        else if (code === 39 || (code >= 30 && code <= 37) || (code >= 90 && code <= 97)) {
          classes = new Set([...classes].filter((each) => !/^a\d/.test(each)));
          if (code !== 39) classes.add(`a${code}`);
        }
      }
    }
    put(line.slice(at));
    return made;
  }

  function addMarked(holder, piece, find) {
    if (!find) {
      holder.append(piece);
      return;
    }
    const hay = find === find.toLowerCase() ? piece.toLowerCase() : piece;
    let at = 0;
    for (let found = hay.indexOf(find); found >= 0; found = hay.indexOf(find, at)) {
      holder.append(piece.slice(at, found), text("mark", piece.slice(found, found + find.length)));
      at = found + find.length;
    }
    holder.append(piece.slice(at));
  }

  const MAX_BLOCKS = 5;

  function showLog(place, key, files, isFinal) {
    const picker = element("select", { id: "file" }, ...files.map((file) =>
      element("option", { value: file.name, textContent: `${file.name} (${formatSize(file.size)})` })));
    picker.setAttribute("aria-label", "Log file");
    picker.hidden = files.length < 2;
    const first = files.find((file) => /rank-0\.log$/.test(file.name) && file.size);
    if (first) picker.value = files.filter((file) => /rank-0\.log$/.test(file.name) && file.size).at(-1).name;
    const search = element("input", { type: "search", id: "log-search", placeholder: "Search (Enter: next, Shift+Enter: previous)" });
    search.setAttribute("aria-label", "Search in the log");
    const button = (name, label, act) => {
      const made = element("button", { type: "button", id: name, textContent: label });
      made.addEventListener("click", act);
      return made;
    };
    const where = element("input", { type: "range", min: 0, max: 1000, id: "log-place" });
    where.setAttribute("aria-label", "Place in the file");
    const status = text("span", "", "quiet");
    status.setAttribute("role", "status");
    const box = element("div", { className: "log", tabIndex: 0 });
    box.setAttribute("role", "log");
    box.setAttribute("aria-live", "off");
    box.setAttribute("aria-label", "Lines of the log");
    const wrap = button("log-wrap", "wrap", () => {
      box.classList.toggle("wrap");
      wrap.setAttribute("aria-pressed", String(box.classList.contains("wrap")));
    });
    wrap.setAttribute("aria-pressed", "false");
    place.replaceChildren(element("div", { className: "tools" }, picker, search,
      button("log-begin", "begin", () => jump(0)), button("log-end", "end", () => jump(-1)), wrap, where, status), box);

    let blocks = []; // consecutive windows: { begin, end, node }
    let size = 0;
    let find = "";
    let isBusy = false;
    let isGone = false;
    let jumps = 0; // an answer for lines from before the last jump is dropped
    const ask = (more) => get("log", { key, file: picker.value || "", ...more });
    const makeBlock = (found) => ({ begin: found.begin, end: found.end,
      node: element("pre", {}, ...found.lines.flatMap((line) => [renderLine(line, find), "\n"])) });

    function describe() {
      status.textContent = `${formatSize(size)}${blocks.length && blocks.at(-1).end >= size ? ", at its end" : ""}`;
      if (document.activeElement !== where && size && blocks.length) {
        const [begin, end] = [blocks[0].begin, blocks.at(-1).end];
        where.value = Math.round(end >= size ? 1000 : (1000 * begin) / size);
      }
    }

    async function jump(at, more = {}) {
      jumps += 1;
      const own = jumps;
      try {
        const found = await ask({ at, ...(at < 0 && !more.find ? { before: 1 } : {}), ...more });
        if (isGone || own !== jumps) return;
        isBusy = false;
        if (found.match === null && more.find) {
          status.textContent = "not found";
          return;
        }
        size = found.size;
        blocks = [makeBlock(found)];
        box.replaceChildren(blocks[0].node);
        box.scrollTop = at < 0 && !more.find ? box.scrollHeight : 0;
        if (found.match !== null) {
          match = found.match;
          await extend(true);
          const mark = blocks.find((each) => each.begin === found.begin)?.node.querySelector("mark");
          mark?.classList.add("found");
          mark?.scrollIntoView({ block: "center" });
        }
        if (!size) box.replaceChildren(text("pre", "The log is empty.", "quiet"));
        describe();
      } catch (error) {
        if (!isGone) showError(box, error);
      }
    }

    let match = null;

    // Load the lines before or after those that are shown; drop those that are far away.
    async function extend(isBefore) {
      if (isBusy || !blocks.length || isGone) return;
      const edge = isBefore ? blocks[0].begin : blocks.at(-1).end;
      if (isBefore ? edge <= 0 : edge >= size && isFinal()) return;
      isBusy = true;
      const own = jumps;
      try {
        const found = await ask(isBefore ? { at: edge, before: 1 } : { at: edge });
        if (own !== jumps) return;
        size = found.size;
        if (found.end > found.begin && !isGone) {
          const made = makeBlock(found);
          const height = box.scrollHeight;
          if (isBefore) {
            blocks.unshift(made);
            box.prepend(made.node);
            box.scrollTop += box.scrollHeight - height;
            if (blocks.length > MAX_BLOCKS) blocks.pop().node.remove();
          } else {
            const wasAtEnd = box.scrollTop + box.clientHeight >= height - 4;
            blocks.push(made);
            box.append(made.node);
            if (blocks.length > MAX_BLOCKS) {
              const gone = blocks.shift().node;
              const lost = gone.offsetHeight;
              gone.remove();
              box.scrollTop -= lost;
            }
            if (wasAtEnd && found.end >= size) box.scrollTop = box.scrollHeight;
          }
        }
        describe();
      } catch {
        status.textContent = "the log cannot be read";
      } finally {
        if (own === jumps) isBusy = false;
      }
    }

    box.addEventListener("scroll", () => {
      if (box.scrollTop < 400) extend(true);
      else if (box.scrollTop + box.clientHeight > box.scrollHeight - 400) extend(false);
    });
    where.addEventListener("change", () => jump(Math.floor((where.value / 1000) * size)));
    picker.addEventListener("change", () => jump(-1));
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const isSame = find === search.value;
      find = search.value;
      if (!find) return;
      const from = isSame && match !== null ? match + (event.shiftKey ? 0 : 1) : (event.shiftKey ? size : 0);
      jump(from, { find, ...(event.shiftKey ? { backward: 1 } : {}) });
    });
    const timer = setInterval(() => {
      if (!document.hidden && !isFinal() && blocks.length && blocks.at(-1).end >= size) extend(false);
    }, 2000);
    leave = () => {
      isGone = true;
      clearInterval(timer);
    };
    jump(-1);
  }

  // ---- a sweep

  async function showSweep(key) {
    const place = element("div", { className: "sweep" });
    view.replaceChildren(element("h1", { textContent: rows.get(key)?.name || key }), place);
    let isGone = false;
    leave = () => { isGone = true; };
    place.append(text("p", "Reading the runs ...", "quiet"));
    try {
      const detail = await get("detail", { key });
      if (isGone) return;
      // A sweep with a metric is ranked by it, as in hpcrun status, and any other one by the loss.
      const { metric, trials, goal } = detail.search || { metric: "loss", trials: [], goal: "minimize" };
      const ranked = new Map(trials.map((trial, place) => [trial.run_id, { ...trial, place }]));
      const runs = detail.runs.map((run) => {
        const { value, step, place } = detail.search ? ranked.get(run.run_id) || {} : { value: run.loss, step: run.step };
        return { ...run, key: run.run_id, step, place, score: typeof value === "number" ? value : null };
      }).sort((a, b) => (detail.search ? a.place - b.place : (a.score ?? Infinity) - (b.score ?? Infinity)));
      const names = [...new Set(runs.flatMap((run) => Object.keys(run.values || {})))];
      const curves = link(`#/curves/${encodeURIComponent(key)}`, "curves of all runs");
      place.replaceChildren(element("p", { className: "tools" }, curves), parallel(runs, names, metric, goal),
        text("h2", detail.search ? `Runs, the best ${metric} first (${goal})` : "Runs, the lowest loss first"), element("div", { className: "wide", tabIndex: 0 }, element("table", { id: "sweep-runs" },
          element("thead", {}, element("tr", {}, ...["run", "state", ...names, "step", metric, "remark"].map((each) => element("th", { scope: "col", textContent: each })))),
          element("tbody", {}, ...runs.map((run) => element("tr", {},
            element("th", { scope: "row" }, link(runLink(run), run.job_id || run.run_id)), element("td", {}, pill(run)),
            ...names.map((name) => text("td", run.values[name] ?? "")), text("td", formatNumber(run.step)),
            text("td", formatNumber(run.score)), text("td", remarkOf(run), "text")))))));
    } catch (error) {
      if (!isGone) showError(place, error);
    }
  }

  // Parallel coordinates: one axis for each value of the sweep, and one for its metric.
  function parallel(runs, names, metric, goal) {
    const shown = runs.filter((run) => run.score !== null);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    if (!shown.length || !names.length) return text("p", `No run of the sweep has a value of ${metric} yet.`, "quiet");
    const [width, height, top, bottom, side] = [1000, 340, 46, 30, 90];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `The values of ${shown.length} runs and their ${metric}; the table has the numbers`);
    const put = (name, attributes, content) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (content !== undefined) made.textContent = content;
      svg.append(made);
      return made;
    };
    const axes = [...names, metric].map((name, index) => {
      const own = shown.map((run) => (index === names.length ? run.score : run.values[name]));
      const numbers = own.map(Number);
      const isNumeric = own.every((value, at) => value !== "" && value !== undefined && Number.isFinite(numbers[at]));
      const labels = isNumeric ? [...new Set(numbers)].sort((a, b) => a - b) : [...new Set(own.map(String))].sort();
      const isLog = isNumeric && labels[0] > 0 && labels.at(-1) / labels[0] >= 50;
      const measure = (value) => (isNumeric ? (isLog ? Math.log(value) : Number(value)) : labels.indexOf(String(value)));
      const [low, high] = [measure(labels[0]), measure(labels.at(-1))];
      const x = side + (index * (width - 2 * side)) / names.length;
      const y = (value) => height - bottom - (high > low ? (measure(value) - low) / (high - low) : 0.5) * (height - top - bottom);
      put("line", { x1: x, x2: x, y1: top, y2: height - bottom });
      put("text", { x, y: 20, "text-anchor": "middle", class: "name" }, name);
      const marks = labels.length <= 8 ? labels : [labels[0], labels.at(-1)];
      for (const mark of marks) put("text", { x: x + 6, y: y(mark) - 3 }, typeof mark === "number" ? formatNumber(mark) : mark);
      return { x, y, own };
    });
    const scores = shown.map((run) => run.score).sort((a, b) => (goal === "maximize" ? b - a : a - b));
    const [best, worst] = [scores[0], scores.at(-1)];
    [...shown.keys()].reverse().forEach((index) => {
      const run = shown[index];
      const points = axes.map(({ x, y, own }) => `${x.toFixed(1)},${y(own[index]).toFixed(1)}`);
      const share = worst === best ? 0 : (run.score - best) / (worst - best);
      const path = put("path", { d: `M${points.join("L")}` });
      path.style.stroke = `color-mix(in srgb, var(--c1) ${Math.round(share * 100)}%, var(--c0))`;
      const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
      title.textContent = `${run.job_id || run.run_id}: ${valuesOf(run)}, ${metric} ${formatNumber(run.score)}`;
      path.append(title);
    });
    const chart = element("div", { className: "chart", tabIndex: 0 }, svg);
    return chart;
  }

  // ---- navigation

  function route() {
    leave();
    leave = () => {};
    onRows = () => {};
    onCurve = () => {};
    const [, name, keys, tab] = location.hash.split("/");
    const decoded = (keys || "").split(",").filter(Boolean).map(decodeURIComponent);
    const isCurves = name === "curves" || (name === "run" && (!tab || tab === "curves"));
    if (!isCurves && (!source || source.url.includes("key="))) connect();
    if (name === "run" && decoded.length) showRun(decoded[0], tab || "curves");
    else if (name === "sweep" && decoded.length) showSweep(decoded[0]);
    else if (name === "curves" && decoded.length) {
      const place = element("div");
      view.replaceChildren(element("h1", { textContent: decoded.length === 1 ? rows.get(decoded[0])?.name || decoded[0] : `${decoded.length} runs` }), place);
      showCurves(place, decoded, { isAlone: false });
    } else showRuns();
    document.title = `${decoded.length === 1 ? rows.get(decoded[0])?.name || decoded[0] : "Runs"} · hpcrun`;
    if (isStarted) view.focus();
    isStarted = true;
  }

  let isStarted = false;
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, textarea")) return;
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  });
  addEventListener("hashchange", route);
  get("rows").then(take, (error) => showError(view, error)).finally(route);
})();
