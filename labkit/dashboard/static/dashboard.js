/* The dashboard of labkit.dashboard: draws what view.py sends, on the page of `labkit dashboard` and in a notebook.
 *
 * A picture has at most 120 columns, so a frame costs the same for 10 steps and for a million. Colours have the meaning
 * that they have in all pictures of the lab, labkit/plots/palette.py.
 */

const COLOURS = { compute: "#0072B2", communication: "#009E73", input: "#CC79A7", other: "#E69F00" };
const LEFT = 62, RIGHT = 8, TOP = 6, BOTTOM = 20;
const LARGEST_HEAT = 0.5; // own time over the median's, less 1: darkest from here

function amount(value, unit) {
    const scales = unit === "s" ? [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]
        : [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]].map(([name, size]) => [name + unit, size]);
    const [name, size] = scales.find(([, size]) => Math.abs(value) >= size) ?? scales.at(-1);
    return `${Number((value / size).toPrecision(3))} ${name}`.trim();
}

const last = (values) => values.findLast((value) => value !== null) ?? null;
const shown = (value, unit) => (value === null ? "–" : amount(value, unit));

function element(parent, name, className = "", text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    parent.append(made);
    return made;
}

export class Dashboard {
    constructor(root) {
        this.root = root;
        root.classList.add("labkit-dashboard");
        this.title = element(root, "h2", "title", "Training");
        this.state = element(root, "p", "state", "No steps yet.");
        this.state.setAttribute("role", "status");
        const panels = element(root, "div", "panels");
        this.throughput = panel(panels, "Throughput of all ranks", 120);
        this.split = panel(panels, "Time of a step", 120, ["compute", "communication", "input"]);
        this.memory = panel(panels, "Memory of a rank", 120, { median: COLOURS.compute, largest: COLOURS.other });
        this.loss = panel(panels, "Loss", 120);
        this.gpu = panel(panels, "GPU utilization of a rank", 120, { median: COLOURS.compute, lowest: COLOURS.other });
        this.heat = panel(panels, "Compute and input of each rank, beside the median", 160);
        this.heat.figure.classList.add("wide");
        this.gpus = new Table(panels, "GPU of each rank, now", ["rank", "utilization", "memory in use", "temperature"]);
        this.operations = new Table(
            panels, "Communication of all ranks: waiting in each call", ["operation", "calls", "mean", "10 µs to 10 s"]);
        this.alarms = new Table(panels, "Alarms", ["cause", "rank", "step", "detail"]);
        this.data = null;
        this.observer = new ResizeObserver(() => this.draw());
        this.observer.observe(root);
    }

    /** Show what `view.py` returned. */
    show(data) {
        this.data = data;
        this.draw();
    }

    lost() {
        this.state.textContent = "The dashboard's process does not answer: it has ended.";
    }

    close() {
        this.observer.disconnect();
    }

    draw() {
        const data = this.data;
        if (!data) return;
        const began = performance.now();
        this.title.textContent = `Training: ${data.folder}`;
        const steps = data.last_step < 0 ? "No steps yet." : `Step ${data.last_step.toLocaleString("en")}`;
        const parts = [steps, `${data.ranks.length} of ${data.world_size} ranks`];
        if (data.evaluation) {
            const figures = Object.entries(data.evaluation.figures).map(([name, value]) => `${name} ${shown(value, "")}`);
            parts.push(`tested after ${data.evaluation.step.toLocaleString("en")} steps: ${figures.join(", ")}`);
        }
        if (data.last_step >= 0) parts.push(`${data.number_of_alarms} ${data.number_of_alarms === 1 ? "alarm" : "alarms"}`);
        this.state.textContent = parts.join(" · ");
        this.throughput.lines(data, { "": data.samples_per_second }, { "": COLOURS.compute }, "");
        this.throughput.value(`${shown(last(data.samples_per_second), "")} samples/s`);
        const split = {
            compute: data.compute_seconds, communication: data.communication_seconds, input: data.input_seconds,
        };
        this.split.areas(data, split, "s");
        this.split.value(shown(last(data.step_seconds), "s"));
        const memory = { largest: data.largest_memory_bytes, median: data.memory_bytes };
        this.memory.lines(data, memory, { median: COLOURS.compute, largest: COLOURS.other }, "B");
        this.memory.value(shown(last(data.largest_memory_bytes), "B"));
        this.loss.lines(data, { "": data.loss }, { "": COLOURS.compute }, "");
        this.loss.value(shown(last(data.loss), ""));
        this.heat.heat(data);
        this.gpu.figure.hidden = this.gpus.figure.hidden = !data.gpus.length;
        if (data.gpus.length) {
            const utilization = { lowest: data.lowest_gpu_percent, median: data.gpu_percent };
            this.gpu.lines(data, utilization, { median: COLOURS.compute, lowest: COLOURS.other }, "%");
            this.gpu.value(shown(last(data.gpu_percent), "%"));
            this.gpus.show(data.gpus.map((gpu) => [
                gpu.rank, shown(gpu.gpu_percent, "%"), shown(gpu.gpu_memory_bytes, "B"), shown(gpu.gpu_celsius, "°C"),
            ]));
        }
        const operations = Object.entries(data.operations);
        this.operations.figure.hidden = !operations.length;
        this.operations.show(operations.map(([name, { seconds, calls }]) => {
            const number = calls.reduce((sum, own) => sum + own, 0);
            return [name, number.toLocaleString("en"), shown(number ? seconds / number : null, "s"), bars(calls, data)];
        }));
        this.alarms.title.textContent = data.alarms.length ? `Alarms: ${data.number_of_alarms}` : "No alarms";
        this.alarms.show(data.alarms.map((alarm) => ["cause", "rank", "step", "detail"].map((name) => alarm[name])));
        Object.assign(this.root.dataset, {
            step: data.last_step, ranks: data.ranks.length, bins: data.steps.length, alarms: data.number_of_alarms,
            milliseconds: (performance.now() - began).toFixed(1),
        });
    }
}

/** A histogram of calls: a bar for each bin; its title has the numbers. */
function bars(calls, data) {
    const whole = document.createElement("span");
    whole.className = "bars";
    whole.setAttribute("role", "img");
    const most = Math.max(...calls, 1);
    const texts = calls.map((number, place) => {
        const bar = element(whole, "i");
        bar.style.height = `${(100 * number) / most}%`;
        const bound = data.operation_bounds[place];
        return number && `${bound ? `up to ${amount(bound, "s")}` : "longer"}: ${number.toLocaleString("en")}`;
    });
    whole.title = texts.filter(Boolean).join("\n");
    whole.setAttribute("aria-label", texts.filter(Boolean).join(", "));
    return whole;
}

/** A table with its title. A cell is a text, a number or an element. */
class Table {
    constructor(parent, title, columns) {
        this.figure = element(parent, "figure", "wide table");
        this.title = element(element(this.figure, "figcaption"), "b", "", title);
        const table = element(this.figure, "table");
        const head = element(element(table, "thead"), "tr");
        for (const name of columns) element(head, "th", "", name).scope = "col";
        this.body = element(table, "tbody");
    }

    show(rows) {
        this.body.replaceChildren();
        for (const cells of rows) {
            const row = element(this.body, "tr");
            for (const cell of cells) element(row, "td").append(cell instanceof Element ? cell : String(cell));
        }
    }
}

function panel(parent, title, height, keys = {}) {
    return new Panel(parent, title, height, keys);
}

/** A picture with its title, its last value and its legend. */
class Panel {
    constructor(parent, title, height, keys) {
        this.figure = element(parent, "figure");
        const caption = element(this.figure, "figcaption");
        element(caption, "b", "", title);
        this.last = element(caption, "span", "value");
        const colours = Array.isArray(keys) ? Object.fromEntries(keys.map((key) => [key, COLOURS[key]])) : keys;
        for (const [name, colour] of Object.entries(colours)) {
            const key = element(caption, "span", "key");
            element(key, "i").style.background = colour;
            key.append(name);
        }
        this.name = title;
        this.height = height;
        this.canvas = element(this.figure, "canvas");
        this.canvas.setAttribute("role", "img");
    }

    value(text) {
        this.last.textContent = text;
        this.canvas.setAttribute("aria-label", `${this.name}: ${text}`);
    }

    /** Clear the canvas and return its context, with the page's colours, in CSS pixels. */
    begin(height = this.height) {
        const { canvas } = this;
        const ratio = window.devicePixelRatio || 1;
        const width = this.figure.clientWidth;
        canvas.style.height = `${height}px`;
        canvas.width = width * ratio;
        canvas.height = height * ratio;
        const context = canvas.getContext("2d");
        context.scale(ratio, ratio);
        context.font = "11px system-ui, sans-serif";
        this.ink = getComputedStyle(this.figure).color;
        context.fillStyle = this.ink;
        this.plot = { left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
        return context;
    }

    axes(context, data, most, unit) {
        const { left, top, width, height } = this.plot;
        context.fillStyle = context.strokeStyle = this.ink;
        context.textAlign = "right";
        context.textBaseline = "middle";
        for (const share of most > 0 ? [0, 0.5, 1] : [0]) {
            const y = top + height * (1 - share);
            context.fillText(amount(share * most, unit), left - 6, y);
            context.globalAlpha = 0.2;
            context.fillRect(left, Math.round(y), width, 1);
            context.globalAlpha = 1;
        }
        this.bottom(context, data);
    }

    bottom(context, data) {
        const { left, top, width, height } = this.plot;
        context.fillStyle = this.ink;
        context.textBaseline = "top";
        context.textAlign = "left";
        context.fillText(`step ${data.steps[0] ?? 0}`, left, top + height + 5);
        context.textAlign = "right";
        context.fillText(String(Math.max(data.last_step, 0)), left + width, top + height + 5);
    }

    lines(data, series, colours, unit) {
        const context = this.begin();
        const { left, top, width, height } = this.plot;
        const most = Math.max(...Object.values(series).flat().map((value) => value ?? 0), 0);
        this.axes(context, data, most, unit);
        const x = (place) => left + (width * (place + 0.5)) / Math.max(data.steps.length, 1);
        for (const [name, values] of Object.entries(series)) {
            context.strokeStyle = context.fillStyle = colours[name];
            context.lineWidth = 1.75;
            context.beginPath();
            let open = false;
            values.forEach((value, place) => {
                if (value === null) return void (open = false);
                const y = top + height * (1 - (most > 0 ? Math.max(value, 0) / most : 0));
                open ? context.lineTo(x(place), y) : context.moveTo(x(place), y);
                if (!open) context.rect(x(place) - 0.5, y - 0.5, 1, 1), context.moveTo(x(place), y);
                open = true;
            });
            context.stroke();
        }
    }

    areas(data, series, unit) {
        const context = this.begin();
        const { left, top, width, height } = this.plot;
        const totals = data.steps.map((_, place) =>
            Object.values(series).reduce((sum, values) => sum + (values[place] ?? 0), 0));
        const most = Math.max(...totals, 0);
        this.axes(context, data, most, unit);
        const column = width / Math.max(data.steps.length, 1);
        data.steps.forEach((_, place) => {
            let y = top + height;
            for (const [name, values] of Object.entries(series)) {
                const tall = most > 0 ? (height * (values[place] ?? 0)) / most : 0;
                context.fillStyle = COLOURS[name];
                context.fillRect(left + place * column, y - tall, column + 0.5, tall);
                y -= tall;
            }
        });
    }

    /** A row for each rank; red: longer than the median of the ranks, blue: shorter. */
    heat(data) {
        const rows = data.own_over_median;
        const tall = Math.max(3, Math.min(16, 320 / Math.max(rows.length, 1)));
        const context = this.begin(Math.round(TOP + BOTTOM + tall * Math.max(rows.length, 1)));
        const { left, top, width } = this.plot;
        const column = width / Math.max(data.steps.length, 1);
        let worst = null;
        rows.forEach((row, place) => {
            row.forEach((value, bin) => {
                if (value === null) return;
                const share = Math.min(Math.abs(value) / LARGEST_HEAT, 1);
                context.fillStyle = value > 0 ? `rgba(178, 24, 43, ${share})` : `rgba(33, 102, 172, ${share})`;
                context.fillRect(left + bin * column, top + place * tall, column + 0.5, tall - (tall > 5 ? 1 : 0));
            });
            const value = last(row);
            if (value !== null && (!worst || value > worst.value)) worst = { rank: data.ranks[place], value };
        });
        context.fillStyle = this.ink;
        context.textAlign = "right";
        context.textBaseline = "middle";
        const every = Math.ceil(12 / tall);
        rows.forEach((_, place) => {
            if (place % every === 0) context.fillText(String(data.ranks[place]), left - 6, top + (place + 0.5) * tall);
        });
        context.globalAlpha = 0.4;
        context.strokeStyle = this.ink;
        context.strokeRect(left, top, width, tall * Math.max(rows.length, 1));
        context.globalAlpha = 1;
        this.bottom(context, data);
        const percent = worst && `${worst.value >= 0 ? "+" : ""}${(100 * worst.value).toFixed(0)} %`;
        this.value(worst ? `slowest now: rank ${worst.rank}, ${percent}; red is slower, blue faster` : "–");
    }
}

/** In a notebook: the widget of labkit.notebook.monitoring. */
export default {
    render({ model, el }) {
        const dashboard = new Dashboard(element(el, "div"));
        const show = () => dashboard.show(model.get("data"));
        if (model.get("data").ranks) show();
        model.on("change:data", show);
        return () => {
            model.off("change:data", show);
            dashboard.close();
        };
    },
};
