/* The live display of a run, from labkit.notebook.output.display, with a Stop button.
 *
 * The ranks' output is set as text, never as HTML. The page reports regularly that it is open: while none is, the
 * kernel sends almost nothing.
 */

const SAVED_AFTER = 2000; // milliseconds: a shorter run is over before a page can be closed and opened
const REPLACED_AFTER = 1000; // milliseconds for the kernel to remove the display itself
const PRESENT_EVERY = 20000; // milliseconds
const HEARD_AFTER = 6000; // milliseconds for the kernel to react to Stop, and for that to be heard, on a busy machine
const ENDED = ["restarting", "autorestarting", "terminating", "dead"]; // status of a kernel that is gone
const VIEW = "application/vnd.jupyter.widget-view+json";
const COLOURS = ["", "#c0392b", "#1e8449", "#9a6a00", "#1f5fbf", "#8e44ad", "#117a8b", ""];
const DARK_COLOURS = ["", "#ff7b6b", "#58d68d", "#e5b94e", "#7fb3ff", "#d7a1f0", "#5fd3e0", ""];

function element(name, className, parent) {
    const made = document.createElement(name);
    made.className = className;
    parent?.append(made);
    return made;
}

/** Text with the eight terminal colours and bold; other sequences were removed before. */
function coloured(text, dark) {
    const parts = text.split(/\x1b\[([0-9;:]*)m/);
    if (parts.length === 1) return [document.createTextNode(text)];
    let colour = "";
    let bold = false;
    const nodes = [];
    parts.forEach((part, index) => {
        if (index % 2 === 0) {
            if (!part) return;
            const span = element("span", "");
            span.textContent = part;
            span.style.color = colour;
            span.style.fontWeight = bold ? "bold" : "";
            nodes.push(span);
            return;
        }
        for (const code of (part || "0").split(/[;:]/).map(Number)) {
            if (code === 0) [colour, bold] = ["", false];
            else if (code === 1) bold = true;
            else if (code === 22) bold = false;
            else if (code === 39) colour = "";
            else if (code >= 30 && code <= 37) colour = (dark ? DARK_COLOURS : COLOURS)[code - 30];
            else if (code >= 90 && code <= 97) colour = (dark ? DARK_COLOURS : COLOURS)[code - 90];
            else if (code === 38 || code === 48) break; // 256 and true colours: the following numbers are not codes
        }
    });
    return nodes;
}

/** Rows of [label, text, rank]; only changed rows are rebuilt, so that a selection stays. */
class Rows {
    constructor(parent, colours) {
        this.parent = parent;
        this.colours = colours;
        this.keys = [];
    }

    show(rows, dark) {
        const keys = rows.map((row) => `${dark}\n${row.join("\n")}`);
        const gone = keys.length ? this.keys.indexOf(keys[0]) : -1;
        for (let i = 0; i < gone; i++) this.parent.firstChild.remove();
        if (gone > 0) this.keys.splice(0, gone);
        const widest = Math.min(18, Math.max(3, ...rows.map((row) => row[0].length)));
        this.parent.style.setProperty("--label", `${widest}ch`);
        rows.forEach((row, index) => {
            if (this.keys[index] === keys[index]) return;
            const made = this.row(row, dark);
            if (index < this.keys.length) this.parent.children[index].replaceWith(made);
            else this.parent.append(made);
        });
        while (this.parent.children.length > rows.length) this.parent.lastChild.remove();
        this.keys = keys;
    }

    row([label, text, rank], dark) {
        const row = element("div", "row");
        element("span", "rank", row).textContent = label;
        element("span", "text", row).append(...coloured(text, dark));
        if (label) row.style.setProperty("--lane", rank < 0 ? "var(--several)" : this.colours[rank % this.colours.length]);
        if (label.includes("stderr")) row.classList.add("stderr");
        return row;
    }
}

/** JupyterLab's open notebook; null on other pages. */
function notebookOf(model) {
    const context = model.widget_manager?.context;
    return context?.model?.cells && !context.isDisposed ? context : null;
}

/** Save the notebook, so that a page that is opened later finds this display in its file. */
function save(context) {
    if (context.contentsModel?.writable !== false && context.model.dirty) context.save().catch(() => {});
}

/** Replace the display with `outputs`. */
function replace(context, model, outputs, executionCount) {
    for (let index = 0; index < context.model.cells.length; index++) {
        const cell = context.model.cells.get(index);
        const shown = cell.type === "code" ? cell.outputs.toJSON() : [];
        if (!shown.some((output) => output.data?.[VIEW]?.model_id === model.get("own_id"))) continue;
        cell.outputs.clear();
        for (const output of outputs) if (output.text !== "") cell.outputs.add(output);
        cell.executionCount = executionCount;
    }
}

/** Message for a kernel that ended during the run. */
function lastWords(shown) {
    const logs = shown.logs ? `; their output is in ${shown.logs}` : "";
    return `The kernel has ended, and the ranks with it${logs}`;
}

/** The cell's outputs in that case: the last lines on the page. */
function lastOutputs(shown) {
    const rows = [...shown.lines, ...shown.bars].map(([label, text]) => `${label} ${text}\n`);
    const above = shown.above ? "... earlier lines are in the logs\n" : "";
    return [
        { output_type: "stream", name: "stdout", text: rows.length ? above + rows.join("") : "" },
        { output_type: "stream", name: "stderr", text: `${lastWords(shown)}\n` },
    ];
}

function isDark(node) {
    const [r, g, b] = getComputedStyle(node).color.match(/[\d.]+/g).map(Number);
    return r + g + b > 382;
}

function render({ model, el }) {
    el.classList.add("labkit-live");
    const lines = element("div", "lines", el);
    lines.tabIndex = 0;
    lines.setAttribute("role", "log");
    lines.setAttribute("aria-live", "off");
    const bars = element("div", "bars", el);
    const about = element("pre", "about", el);
    const foot = element("div", "foot", el);
    const track = element("div", "track", foot);
    track.setAttribute("role", "progressbar");
    const done = element("div", "done", track);
    const state = element("span", "state", foot);
    const logs = element("span", "logs", foot);
    const stop = element("button", "stop", foot);
    stop.type = "button";

    const colours = model.get("colours");
    const lineRows = new Rows(lines, colours);
    const barRows = new Rows(bars, colours);
    const timers = [];
    const kernel = model.widget_manager?.kernel;
    let gone = false; // whether the kernel ended during the run

    function draw() {
        const shown = model.get("shown");
        const over = gone || model.get("outputs").length > 0;
        const dark = isDark(el);
        el.toggleAttribute("data-dark", dark);
        el.dataset.phase = over ? "over" : shown.phase;
        const atEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 8;
        lineRows.show(shown.above ? [["", "earlier lines: see the logs, or wait until the run ends", -1], ...shown.lines] : shown.lines, dark);
        lines.hidden = !shown.lines.length;
        if (atEnd) lines.scrollTop = lines.scrollHeight;
        barRows.show(over ? [] : shown.bars, dark);
        about.textContent = gone ? lastWords(shown) : over ? "" : shown.about;
        about.hidden = !about.textContent;
        const known = shown.share !== null;
        const percent = known ? Math.floor(100 * shown.share) : 0;
        track.classList.toggle("unknown", !known && !over);
        track.title = known ? "the lowest of the ranks' progress bars, or the share of ranks that have ended" : "";
        if (known) track.setAttribute("aria-valuenow", percent);
        done.style.width = known ? `${100 * shown.share}%` : "";
        const standing = gone ? `In[${model.get("cell")}] was cut off` : over ? `In[${model.get("cell")}] has ended` : shown.state;
        state.textContent = (known && !over ? `${percent} % · ` : "") + standing;
        logs.textContent = shown.logs ? `logs: ${shown.logs}` : "";
        stop.hidden = over;
        stop.disabled = model.get("stopping");
        stop.textContent = stop.disabled ? "Stopping…" : "Stop";
        if (over && !gone) timers.push(setTimeout(settle, REPLACED_AFTER));
    }

    function settle() {
        const context = notebookOf(model);
        // a page that was opened during the run does not get the cell's outputs
        if (context && el.isConnected) replace(context, model, model.get("outputs"), model.get("cell"));
        else if (el.isConnected) showOutputs();
    }

    function showOutputs() {
        const texts = model.get("outputs").map((o) => o.text ?? o.data?.["text/plain"] ?? o.traceback.join("\n"));
        about.replaceChildren(...coloured(texts.join("\n"), isDark(el)));
        about.hidden = false;
        lines.hidden = true;
    }

    function kernelHasEnded() {
        if (gone || model.get("outputs").length) return;
        gone = true;
        changed();
        timers.push(setTimeout(() => {
            const context = notebookOf(model);
            if (!context || !el.isConnected) return;
            replace(context, model, lastOutputs(model.get("shown")), null);
            save(context);
        }, REPLACED_AFTER));
    }

    function statusChanged(_, status) {
        if (ENDED.includes(status)) kernelHasEnded();
    }

    async function lineChanged() {
        const whole = await model.widget_manager?.get_model(model.get("own_id")).catch(() => null);
        if (whole?.comm_live === false) kernelHasEnded();
    }

    let wanted = 0;
    function changed() {
        wanted ||= requestAnimationFrame(() => {
            wanted = 0;
            draw();
        });
    }

    stop.addEventListener("click", () => {
        stop.disabled = true;
        stop.textContent = "Stopping…";
        model.send({ kind: "stop" });
        timers.push(setTimeout(() => {
            if (gone || model.get("stopping") || model.get("outputs").length) return;
            if (kernel) kernel.interrupt(); // as the toolbar's button does
            else about.textContent = "The kernel does not respond to this button: use the toolbar's interrupt button.";
            about.hidden = Boolean(kernel);
        }, HEARD_AFTER));
    });
    for (const name of ["shown", "outputs", "stopping"]) model.on(`change:${name}`, changed);
    model.on("comm_live_update", lineChanged);
    kernel?.statusChanged?.connect(statusChanged);
    changed();
    model.send({ kind: "here" });
    const present = setInterval(() => gone || model.get("outputs").length || model.send({ kind: "here" }), PRESENT_EVERY);
    timers.push(setTimeout(() => {
        const context = notebookOf(model);
        if (context && el.isConnected && !gone && !model.get("outputs").length) save(context);
    }, SAVED_AFTER));

    return () => {
        timers.forEach(clearTimeout);
        clearInterval(present);
        if (wanted) cancelAnimationFrame(wanted);
        for (const name of ["shown", "outputs", "stopping"]) model.off(`change:${name}`, changed);
        model.off("comm_live_update", lineChanged);
        kernel?.statusChanged?.disconnect(statusChanged);
    };
}

export default { render };
