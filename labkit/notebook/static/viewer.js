/* The zoomable timeline of labkit.notebook.viewer: draws the data packed by its Python side on a canvas.
 *
 * Events come as columns, sorted by lane (a rank's events of one kind) and within a lane by start, so that a frame reads
 * only what it shows. Bars too thin to be distinguished are drawn as one.
 */

const GUTTER = 46; // for the ranks' numbers
const TOP = 6;
const AXIS = 36;
const RIGHT = 12;
const TALLEST_PLOT = 576;
const TALLEST_LANE = 52;
const THINNEST_LANE = 3; // initially; users can make lanes thinner
const LANE_WITH_ROWS = 6; // from this height, a lane has a row for computing and one for the rest
const ROW_OF_ITS_OWN = 3.5; // if rows can be this tall, each kind has its own
const LANE_WITH_ARROWS = 8;
const MOST_ARROWS = 250;
const TOLD_APART = 3; // pixels; a touching bar thinner than this is merged with its neighbour
const SHORTEST_VIEW = 1e-9; // seconds
const SAME_GESTURE = 400; // milliseconds between two turns of the wheel

/** Unpack the columns; `layout` is [name, type, length] for each, in order. */
async function unpack(packed, layout) {
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = await new Response(stream).arrayBuffer();
    const types = { f64: Float64Array, i32: Int32Array, u32: Uint32Array };
    const columns = {};
    let offset = 0;
    for (const [name, type, length] of layout) {
        columns[name] = new types[type](bytes, offset, length);
        offset += columns[name].byteLength;
    }
    return columns;
}

function duration(seconds) {
    const rounded = Number(seconds.toPrecision(3));
    const [name, size] = timeUnit(rounded);
    return `${Number((rounded / size).toPrecision(3))} ${name}`;
}

function timeUnit(seconds) {
    for (const [name, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (seconds >= size) return [name, size];
    return seconds > 0 ? ["ns", 1e-9] : ["s", 1];
}

function byteSize(nbytes) {
    const [name, size] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 0]].find(([, size]) => nbytes >= size);
    return `${Number((nbytes / (size || 1)).toPrecision(3))} ${name}`;
}

/** A round step (1, 2 or 5 times a power of ten) of at least `least`. */
function roundStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * ([1, 2, 5].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10);
}

/** First index in [low, high) of the rising `values` whose value is at least `wanted`; `high` if there is none. */
function firstAtLeast(values, low, high, wanted) {
    while (low < high) {
        const middle = (low + high) >> 1;
        if (values[middle] < wanted) low = middle + 1;
        else high = middle;
    }
    return low;
}

/** Round an interval to whole pixels, as [edge, length]: such bars are crisp, and quick to fill. */
function whole(from, to) {
    const edge = Math.round(from);
    return [edge, Math.max(Math.round(to) - edge, 1)];
}

function element(parent, tag, className, text = "") {
    const made = parent.appendChild(document.createElement(tag));
    made.className = className;
    made.textContent = text;
    return made;
}

class Viewer {
    constructor(root, about, columns, askForPath) {
        Object.assign(this, { root, about, askForPath }, columns);
        this.kinds = about.kinds;
        this.began = about.began;
        this.ended = about.began + (about.seconds || 1e-9);
        this.limit = about.began + (about.axis || about.seconds || 1e-9); // beside a longer run, beyond its end
        this.path = new Float64Array(0);
        this.pointer = null; // position over the canvas, in pixels
        this.hovered = -1; // index of the event under it
        this.index();
        this.build();
        this.lane = this.usualLane();
        this.top = 0;
        [this.from, this.to] = [this.began, this.limit];
        this.listen();
    }

    /** Indexes for every frame: the running maximum of end times in a lane, and each message's other end. */
    index() {
        const { start, end, lanes, messages } = this;
        this.reach = new Float64Array(end.length);
        for (let lane = 0; lane + 1 < lanes.length; lane++) {
            let reach = -Infinity;
            for (let i = lanes[lane]; i < lanes[lane + 1]; i++) this.reach[i] = reach = Math.max(reach, end[i]);
        }
        this.partner = new Int32Array(start.length).fill(-1);
        for (let m = 0; m < messages.length; m += 2) {
            this.partner[messages[m]] = messages[m + 1];
            this.partner[messages[m + 1]] = messages[m];
        }
    }

    // The page --------------------------------------------------------------------------------------------------------

    build() {
        const { root, about } = this;
        root.className = "labkit-viewer";
        root.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys would move to another cell
        const head = element(root, "div", "bar");
        element(head, "span", "title", about.title);
        this.range = element(head, "span", "range");
        this.range.setAttribute("aria-live", "polite");
        const button = (text, label, action) => {
            const made = element(head, "button", "", text);
            made.type = "button";
            made.title = label;
            made.setAttribute("aria-label", label);
            made.addEventListener("click", action);
            return made;
        };
        button("−", "zoom out (-)", () => this.zoom(2));
        button("+", "zoom in (+)", () => this.zoom(0.5));
        button("whole run", "show the whole run (Home)", () => this.whole());
        button("lanes −", "make the ranks' lanes thinner ( [ )", () => this.stretch(1 / 1.5));
        button("lanes +", "make the ranks' lanes taller ( ] )", () => this.stretch(1.5));
        this.pathButton = button("critical path", "show what determined when the run ended", () => this.togglePath());
        this.pathButton.setAttribute("aria-pressed", "false");

        this.plot = Math.min(Math.max(about.worldSize * TALLEST_LANE, 60), TALLEST_PLOT);
        this.canvas = element(root, "canvas", "");
        this.canvas.tabIndex = 0;
        this.canvas.setAttribute("role", "application");
        this.canvas.setAttribute("aria-roledescription", "zoomable timeline");
        this.canvas.setAttribute("aria-label", about.alt);
        this.context = this.canvas.getContext("2d", { alpha: false });
        this.tooltip = element(root, "div", "tooltip");
        this.tooltip.hidden = true;

        const foot = element(root, "div", "bar");
        const swatch = (name) => {
            const item = element(foot, "span", "legend");
            const colour = element(item, "i", "");
            item.append(name);
            return colour;
        };
        for (const kind of this.kinds) swatch(kind.name).style.background = kind.colour;
        this.idleSwatch = swatch("idle");
        this.hidden = element(foot, "span", "note", "(kinds share rows: the first in the legend hides the others)");
        element(foot, "span", "keys", "wheel: zoom · drag: move · Shift + wheel: ranks · keys: ← ↑ → ↓ + − Home");
    }

    /** Colours of the page's current theme. */
    theme() {
        const { body } = document;
        const dark =
            body.dataset.jpThemeLight === "false" ||
            (body.dataset.jpThemeLight === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
        this.root.toggleAttribute("data-dark", dark);
        const style = getComputedStyle(this.root);
        this.colours = { ...this.about[dark ? "dark" : "light"], text: style.color, page: style.backgroundColor };
        this.font = style.fontFamily;
        this.idleSwatch.style.background = this.colours.idle;
    }

    resize() {
        const width = Math.max(this.root.clientWidth, 240);
        const scale = window.devicePixelRatio || 1;
        if (width === this.width && scale === this.scale) return;
        [this.width, this.scale, this.height] = [width, scale, TOP + this.plot + AXIS];
        Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(this.height * scale) });
        Object.assign(this.canvas.style, { width: `${width}px`, height: `${this.height}px` });
        this.redraw();
    }

    // User input ------------------------------------------------------------------------------------------------------

    listen() {
        const { canvas } = this;
        const stop = new AbortController();
        const on = (target, name, act, options = {}) =>
            target.addEventListener(name, act, { ...options, signal: stop.signal });
        let [dragged, elsewhere, here] = [false, -Infinity, -Infinity];
        // a wheel gesture that began elsewhere keeps scrolling the page when the viewer comes under the pointer
        on(window, "wheel", (event) => {
            if (!canvas.contains(event.target)) elsewhere = event.timeStamp;
        }, { capture: true, passive: true });
        on(canvas, "wheel", (event) => {
            const alone = !event.ctrlKey && !event.metaKey;
            const leaving = event.timeStamp - here > SAME_GESTURE && event.deltaY > 0 && this.isWhole();
            if (alone && !event.shiftKey && !event.altKey && (event.timeStamp - elsewhere < SAME_GESTURE || leaving)) {
                elsewhere = event.timeStamp;
                return;
            }
            event.preventDefault();
            here = event.timeStamp;
            const turn = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 33 : 1);
            if (event.shiftKey) this.scroll(turn);
            else if (event.altKey) this.stretch(Math.exp(-turn / 400), event.offsetY - TOP);
            else if (event.deltaY === 0) this.pan((event.deltaX / this.across()) * (this.to - this.from));
            else this.zoom(Math.exp(turn / (event.ctrlKey ? 100 : 400)), event.offsetX);
        }, { passive: false });
        on(canvas, "pointerdown", (event) => {
            dragged = true;
            this.pointer = [event.offsetX, event.offsetY - TOP];
            canvas.setPointerCapture(event.pointerId);
            canvas.focus({ preventScroll: true });
        });
        on(canvas, "pointermove", (event) => {
            const before = this.pointer;
            this.pointer = [event.offsetX, event.offsetY - TOP];
            if (dragged && before) {
                this.pan(((before[0] - this.pointer[0]) / this.across()) * (this.to - this.from));
                this.scroll(before[1] - this.pointer[1]);
            }
            this.redraw();
        });
        for (const name of ["pointerup", "pointercancel"]) on(canvas, name, () => (dragged = false));
        on(canvas, "pointerleave", () => {
            this.pointer = null;
            this.redraw();
        });
        on(canvas, "dblclick", () => {
            if (this.hovered < 0) return;
            const around = 0.2 * (this.end[this.hovered] - this.start[this.hovered]);
            this.show(this.start[this.hovered] - around, this.end[this.hovered] + around);
        });
        on(canvas, "keydown", (event) => {
            const span = this.to - this.from;
            const action = {
                ArrowLeft: () => this.pan(-span / 8), ArrowRight: () => this.pan(span / 8),
                ArrowUp: () => this.scroll(-3 * this.lane), ArrowDown: () => this.scroll(3 * this.lane),
                PageUp: () => this.scroll(-this.plot), PageDown: () => this.scroll(this.plot),
                "+": () => this.zoom(1 / 1.5), "=": () => this.zoom(1 / 1.5), "-": () => this.zoom(1.5),
                "]": () => this.stretch(1.25), "[": () => this.stretch(1 / 1.25), Home: () => this.whole(),
            }[event.key];
            if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            event.stopPropagation();
            action();
        });
        const resized = new ResizeObserver(() => this.resize());
        resized.observe(this.root);
        const themed = new MutationObserver(() => this.redraw((this.colours = null)));
        themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
        on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.redraw((this.colours = null)));
        this.close = () => {
            stop.abort();
            resized.disconnect();
            themed.disconnect();
            cancelAnimationFrame(this.frame);
        };
    }

    across() {
        return this.width - GUTTER - RIGHT;
    }

    isWhole() {
        return this.from <= this.began && this.to >= this.limit;
    }

    usualLane() {
        return Math.min(Math.max(this.plot / this.about.worldSize, THINNEST_LANE), TALLEST_LANE);
    }

    /** The whole run, from its first rank, in lanes as at the beginning. */
    whole() {
        this.lane = this.usualLane();
        this.top = 0;
        this.show(this.began, this.limit);
    }

    /** Show the times from `from` to `to`, as far as the run goes. */
    show(from, to) {
        const all = this.limit - this.began;
        const span = Math.min(Math.max(to - from, Math.min(SHORTEST_VIEW, all)), all);
        const middle = (from + to) / 2;
        this.from = Math.min(Math.max(middle - span / 2, this.began), this.limit - span);
        this.to = this.from + span;
        this.redraw();
    }

    /** Scale the visible time span by `factor`; the time at pixel `x` stays where it is. */
    zoom(factor, x = GUTTER + this.across() / 2) {
        const all = this.limit - this.began;
        const share = Math.min(Math.max((x - GUTTER) / this.across(), 0), 1);
        const held = this.from + share * (this.to - this.from);
        const span = Math.min(Math.max((this.to - this.from) * factor, Math.min(SHORTEST_VIEW, all)), all);
        this.show(held - share * span, held + (1 - share) * span);
    }

    pan(seconds) {
        this.show(this.from + seconds, this.to + seconds);
    }

    scroll(pixels) {
        this.top = Math.min(this.top + pixels, this.about.worldSize * this.lane - this.plot);
        this.top = Math.max(this.top, 0);
        this.redraw();
    }

    /** Make lanes `factor` times as tall; the rank at pixel `y` stays where it is. */
    stretch(factor, y = this.plot / 2) {
        const rank = (this.top + y) / this.lane;
        const least = Math.min(this.plot / this.about.worldSize, TALLEST_LANE);
        this.lane = Math.min(Math.max(this.lane * factor, least), 2 * TALLEST_LANE);
        this.top = rank * this.lane - y;
        this.scroll(0);
    }

    togglePath() {
        const shown = this.pathButton.getAttribute("aria-pressed") !== "true";
        this.pathButton.setAttribute("aria-pressed", String(shown));
        if (shown && !this.path.length) this.askForPath();
        else if (shown) this.bringPathIntoView();
        this.redraw();
    }

    /** Scroll to the ranks of the critical path in the time shown; make lanes thinner if they do not fit. */
    bringPathIntoView() {
        let [low, high] = [Infinity, -Infinity];
        for (let step = 0; step < this.path.length; step += 3) {
            const [rank, start, end] = this.path.subarray(step, step + 3);
            if (end < this.from || start > this.to) continue;
            [low, high] = [Math.min(low, rank), Math.max(high, rank)];
        }
        if (low > high) return;
        const ranks = high - low + 1;
        if (ranks * this.lane > this.plot) this.stretch(this.plot / ranks / this.lane);
        this.top = ((low + high + 1) / 2) * this.lane - this.plot / 2;
        this.scroll(0);
    }

    // One frame -------------------------------------------------------------------------------------------------------

    redraw() {
        this.frame ??= requestAnimationFrame(() => {
            this.frame = undefined;
            if (!this.width) return;
            if (!this.colours) this.theme();
            this.draw();
        });
    }

    x(time) {
        return GUTTER + ((time - this.from) / (this.to - this.from)) * this.across();
    }

    /** Top and height of a kind's row in a rank's lane; thin lanes have a single row. */
    row(rank, kind) {
        const y = rank * this.lane - this.top;
        if (this.lane < 3) return [Math.floor(y), Math.ceil(this.lane)];
        if (this.lane < LANE_WITH_ROWS) return whole(y, y + this.lane - 1);
        const rows = this.rows();
        const height = (0.84 * this.lane) / rows;
        const top = y + 0.08 * this.lane + Math.min(kind, rows - 1) * height;
        return whole(top, top + height);
    }

    /** Number of rows in a lane: one for each kind if there is room, else computing and the rest, else one. */
    rows() {
        const each = this.kinds.length || 1;
        if (this.lane < LANE_WITH_ROWS) return 1;
        if ((0.84 * this.lane) / each >= ROW_OF_ITS_OWN) return each;
        return this.kinds[0]?.name === "compute" ? Math.min(each, 2) : 1;
    }

    draw() {
        const { context: c, colours, about } = this;
        c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
        c.fillStyle = colours.page;
        c.fillRect(0, 0, this.width, this.height);
        this.drawn = { bars: 0, labels: 0, arrows: 0, steps: 0 };
        this.labels = [];
        this.first = Math.floor(this.top / this.lane);
        this.last = Math.min(Math.ceil((this.top + this.plot) / this.lane), about.worldSize);
        c.translate(0, TOP);
        c.save();
        c.beginPath();
        c.rect(GUTTER, 0, this.across(), this.plot);
        c.clip();
        this.drawLanes();
        this.drawMachineBorders();
        this.drawArrows();
        this.drawLabels();
        if (!this.start.length) this.drawNothing();
        if (this.pathButton.getAttribute("aria-pressed") === "true") this.drawPath();
        this.drawHovered();
        c.restore();
        this.drawAxes();
        this.hidden.hidden = this.rows() >= this.kinds.length;
        const range = this.isWhole() ? "" : `${duration(this.to - this.from)} shown`;
        if (range !== this.range.textContent) this.range.textContent = range; // each change is announced by screen readers
        const { root, drawn } = this;
        Object.assign(root.dataset, { ...drawn, from: this.from, to: this.to, lanes: `${this.first}-${this.last - 1}` });
    }

    drawLanes() {
        const { context: c, lanes, kinds } = this;
        c.fillStyle = this.colours.idle;
        for (let rank = this.first; rank < this.last; rank++) {
            const [y] = this.row(rank, 0);
            const [last, height] = this.row(rank, Math.max(kinds.length - 1, 0));
            c.fillRect(this.x(this.began), y, this.x(this.ended) - this.x(this.began), last + height - y);
        }
        // the first kinds last: in a shared row, computing hides sending, and sending hides receiving
        for (let kind = kinds.length - 1; kind >= 0; kind--) {
            for (let rank = this.first; rank < this.last; rank++) {
                const lane = rank * kinds.length + kind;
                c.fillStyle = kinds[kind].colour;
                this.drawBars(lanes[lane], lanes[lane + 1], kind, ...this.row(rank, kind));
            }
        }
    }

    drawBars(first, last, kind, y, height) {
        const { context: c, start, end, from, to } = this;
        const [least, most, scale] = [GUTTER - 2, this.width + 2, this.across() / (to - from)];
        const room = height >= 10 ? 40 : Infinity;
        let [left, right, only] = [NaN, NaN, -1];
        const flush = () => {
            if (only === -1) return;
            c.fillRect(left, y, right - left, height);
            this.drawn.bars++;
            if (only >= 0 && right - left > room) this.labels.push([only, kind, left, right, y + height / 2]);
        };
        for (let i = firstAtLeast(this.reach, first, last, from); i < last && start[i] < to; i++) {
            const a = Math.max(Math.round(GUTTER + (start[i] - from) * scale), least);
            const b = Math.min(Math.max(Math.round(GUTTER + (end[i] - from) * scale), a + 1), most);
            if (b < least) continue;
            if (a - right < 1 && (b - a < TOLD_APART || right - left < TOLD_APART)) {
                right = Math.max(right, b);
                only = -2; // several
                continue;
            }
            flush();
            if (a - right < 1) {
                // adjacent or overlapping bars: a line where the second begins
                c.fillStyle = this.colours.page;
                c.fillRect(a, y, 1, height);
                c.fillStyle = this.kinds[kind].colour;
                [left, right, only] = [a + 1, b, i];
            } else [left, right, only] = [a, b, i];
        }
        flush();
    }

    drawLabels() {
        const { context: c, about } = this;
        c.font = `10px ${this.font}`;
        c.textAlign = "center";
        c.textBaseline = "middle";
        c.lineWidth = 2;
        c.lineJoin = "round";
        let [row, reached] = ["", 0];
        for (const [i, kind, left, right, y] of this.labels) {
            const [a, b] = [Math.max(left, GUTTER), Math.min(right, this.width - RIGHT)];
            const name = about.operations[this.operation[i]];
            const texts = this.nbytes[i] ? [`${name} ${byteSize(this.nbytes[i])}`, name] : [name];
            // bars of one row may overlap, their labels must not; they come row by row, from left to right
            if (row !== `${kind} ${y}`) [row, reached] = [`${kind} ${y}`, 0];
            const middle = (a + b) / 2;
            const fits = (width) => width < b - a - 8 && middle - width / 2 >= reached;
            const text = texts.find((candidate) => fits(c.measureText(candidate).width));
            if (!text) continue;
            reached = middle + c.measureText(text).width / 2 + 4;
            c.strokeStyle = this.kinds[kind].colour; // arrows pass behind
            c.fillStyle = this.kinds[kind].text;
            c.strokeText(text, middle, y + 0.5);
            c.fillText(text, middle, y + 0.5);
            this.drawn.labels++;
        }
    }

    drawMachineBorders() {
        const { context: c } = this;
        const { ranksPerMachine, worldSize } = this.about;
        this.drawn.borders = 0;
        if (ranksPerMachine < 2) return; // not known, or a border at every rank
        c.fillStyle = this.colours.text;
        for (let rank = ranksPerMachine; rank < worldSize; rank += ranksPerMachine) {
            const y = Math.round(rank * this.lane - this.top);
            if (y < 0 || y > this.plot) continue;
            c.fillRect(GUTTER, y - 1, this.across(), 2);
            this.drawn.borders++;
        }
    }

    /** Does a message stay inside its machine? Empty if machines are not known, or there is only one. */
    linkText(rank, peer) {
        const { ranksPerMachine, worldSize } = this.about;
        if (!ranksPerMachine || ranksPerMachine >= worldSize) return "";
        const [from, to] = [rank, peer].map((one) => Math.floor(one / ranksPerMachine));
        return from === to ? `, inside machine ${from}` : `, between machines ${Math.min(from, to)} and ${Math.max(from, to)}`;
    }

    drawNothing() {
        const { context: c } = this;
        c.font = `12px ${this.font}`;
        c.textAlign = "center";
        c.textBaseline = "middle";
        c.fillStyle = this.colours.text;
        c.fillText("nothing was recorded", GUTTER + this.across() / 2, this.plot / 2);
    }

    drawArrows() {
        if (this.lane < LANE_WITH_ARROWS) return;
        const { messages, start, end, rank } = this;
        const seen = [];
        for (let m = 0; m < messages.length; m += 2) {
            const [sent, received] = [messages[m], messages[m + 1]];
            if (start[sent] > this.to || end[received] < this.from) continue;
            const [low, high] = [Math.min(rank[sent], rank[received]), Math.max(rank[sent], rank[received])];
            if (high < this.first || low >= this.last) continue;
            if (seen.push(sent) > MOST_ARROWS) return;
        }
        for (const sent of seen) this.drawArrow(sent, 1);
    }

    drawArrow(sent, width) {
        const { context: c } = this;
        const received = this.partner[sent];
        const [top, height] = this.row(this.rank[sent], this.kind(sent));
        const [otherTop, otherHeight] = this.row(this.rank[received], this.kind(received));
        const [x, y] = [this.x(this.start[sent]), top + height / 2];
        const [toX, toY] = [this.x(this.end[received]), otherTop + otherHeight / 2];
        const angle = Math.atan2(toY - y, toX - x);
        c.strokeStyle = c.fillStyle = this.colours.message;
        c.lineWidth = width;
        c.globalAlpha = width > 1 ? 1 : 0.75;
        c.beginPath();
        c.moveTo(x, y);
        c.lineTo(toX - 4 * Math.cos(angle), toY - 4 * Math.sin(angle));
        c.stroke();
        c.beginPath();
        c.moveTo(toX, toY);
        for (const side of [0.4, -0.4]) c.lineTo(toX - 7 * Math.cos(angle + side), toY - 7 * Math.sin(angle + side));
        c.fill();
        c.globalAlpha = 1;
        this.drawn.arrows++;
    }

    /** The critical path: along the lane of the rank that the others wait for, and across to the next one. */
    drawPath() {
        const { context: c, path } = this;
        c.lineJoin = "round";
        for (const [colour, width] of [[this.colours.page, 5], [this.colours.path, 2.5]]) {
            c.strokeStyle = colour;
            c.lineWidth = width;
            c.beginPath();
            for (let step = 0; step < path.length; step += 3) {
                const y = (path[step] + 0.5) * this.lane - this.top;
                if (step === 0) c.moveTo(this.x(path[step + 1]), y);
                else c.lineTo(this.x(path[step + 1]), y);
                c.lineTo(this.x(path[step + 2]), y);
            }
            this.drawn.steps = path.length / 3;
            c.stroke();
        }
    }

    // Under the pointer -----------------------------------------------------------------------------------------------

    kind(i) {
        const lane = firstAtLeast(this.lanes, 0, this.lanes.length, i + 1) - 1;
        return lane % this.kinds.length;
    }

    /** The event at the pointer, -1 if there is none, and the number of others within a pixel. */
    at(x, y) {
        const { lanes, kinds, start, end } = this;
        const rank = Math.floor((y + this.top) / this.lane);
        if (x < GUTTER || x > this.width - RIGHT || y < 0 || y > this.plot || rank >= this.about.worldSize) return [-1, 0];
        const pixel = (this.to - this.from) / this.across();
        const time = this.from + (x - GUTTER) * pixel;
        let [best, others, shortest] = [-1, -1, Infinity];
        for (let kind = 0; kind < kinds.length; kind++) {
            const [top, height] = this.row(rank, kind);
            if (y < top || y > top + height + 1) continue;
            const [first, last] = [lanes[rank * kinds.length + kind], lanes[rank * kinds.length + kind + 1]];
            const begin = firstAtLeast(this.reach, first, last, time - pixel);
            for (let i = begin; i < last && start[i] <= time + pixel; i++) {
                if (end[i] < time - pixel) continue;
                others++;
                // of overlapping events the shortest, of others the nearest
                const away = Math.max(start[i] - time, time - end[i], 0);
                const rating = end[i] - start[i] + 1e3 * away;
                if (rating < shortest) [best, shortest] = [i, rating];
            }
        }
        return [best, others];
    }

    drawHovered() {
        const [i, others] = this.pointer ? this.at(...this.pointer) : [-1, 0];
        this.hovered = i;
        this.tooltip.hidden = i < 0;
        if (i < 0) return;
        const isMessage = this.partner[i] >= 0;
        for (const j of isMessage ? [i, this.partner[i]] : this.members(i)) {
            const [y, height] = this.row(this.rank[j], this.kind(j));
            const [a, b] = [this.x(this.start[j]), Math.max(this.x(this.end[j]), this.x(this.start[j]) + 1)];
            this.context.strokeStyle = this.colours.path;
            this.context.lineWidth = j === i && height > 5 ? 2 : 1;
            this.context.strokeRect(a - 1, y - 1, b - a + 2, height + 2);
        }
        if (isMessage) this.drawArrow(this.kinds[this.kind(i)].name === "send" ? i : this.partner[i], 2);
        this.tooltip.textContent = this.describe(i, others);
        const [x, y] = this.pointer;
        const { offsetWidth: width, offsetHeight: height } = this.tooltip;
        const left = x + 16 + width > this.width ? Math.max(x - 16 - width, 0) : x + 16;
        const top = TOP + this.canvas.offsetTop + (y + 16 + height > this.height ? Math.max(y - 12 - height, 0) : y + 16);
        Object.assign(this.tooltip.style, { left: `${left}px`, top: `${top}px` });
    }

    /** All ranks' events of a collective; any other event alone. */
    members(i) {
        if (this.kinds[this.kind(i)].name !== "collective" || this.sequence[i] < 0) return [i];
        const key = (j) => this.group[j] * 2 ** 32 + this.sequence[j];
        if (!this.collectives) {
            this.collectives = new Map();
            const kind = this.kinds.findIndex(({ name }) => name === "collective");
            for (let lane = kind; lane + 1 < this.lanes.length; lane += this.kinds.length) {
                for (let j = this.lanes[lane]; j < this.lanes[lane + 1]; j++) {
                    if (!this.collectives.has(key(j))) this.collectives.set(key(j), []);
                    this.collectives.get(key(j)).push(j);
                }
            }
        }
        return this.collectives.get(key(i));
    }

    describe(i, others) {
        const { about, start, end } = this;
        const kind = this.kinds[this.kind(i)].name;
        const name = about.operations[this.operation[i]];
        const at = (time) => this.timeText(time - this.began, end[i] - start[i]);
        const lines = [`${name} · rank ${this.rank[i]}`];
        lines.push(`${duration(end[i] - start[i])}, from ${at(start[i])} to ${at(end[i])} (${about.clock})`);
        if (kind === "compute" && this.sequence[i] > 0) {
            lines.push(`${this.sequence[i]} operator${this.sequence[i] === 1 ? "" : "s"}`);
        }
        const what = this.nbytes[i] ? [byteSize(this.nbytes[i])] : [];
        if (this.peer[i] >= 0) {
            const link = this.linkText(this.rank[i], this.peer[i]);
            what.push(`${kind === "send" ? "to" : "from"} rank ${this.peer[i]}${link}`);
        }
        const group = about.groups[this.group[i]];
        if (what.length || group) lines.push([what.join(" "), group].filter(Boolean).join(" · "));
        if (about.lines[this.line[i]]) lines.push(about.lines[this.line[i]]);
        if (others > 0) lines.push(`and ${others} more within a pixel: zoom in`);
        return lines.join("\n");
    }

    // Axes ------------------------------------------------------------------------------------------------------------

    /** A time in its own unit, with enough digits to distinguish it from times `step` away. */
    timeText(seconds, step) {
        const [name, size] = timeUnit(seconds);
        const digits = Math.min(Math.max(2 - Math.floor(Math.log10((step || seconds || 1) / size)), 0), 9);
        return `${Number((seconds / size).toFixed(digits))} ${name}`;
    }

    drawAxes() {
        const { context: c, colours, about } = this;
        const [unit, size] = timeUnit(this.to - this.began);
        const [from, to] = [(this.from - this.began) / size, (this.to - this.began) / size];
        c.fillStyle = c.strokeStyle = colours.text;
        c.font = `11px ${this.font}`;
        c.textBaseline = "top";
        c.lineWidth = 1;
        c.textAlign = "center";
        const digits = (step) => Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
        let step = roundStep(((to - from) * 80) / this.across());
        // deep inside a long run the numbers are long
        const room = c.measureText(to.toFixed(digits(step))).width + 24;
        if (room > 80) step = roundStep(((to - from) * room) / this.across());
        for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9 * step; n++) {
            const x = Math.round(GUTTER + ((n * step - from) / (to - from)) * this.across()) + 0.5;
            c.globalAlpha = 0.4;
            c.fillRect(x - 0.5, this.plot, 1, 4);
            c.globalAlpha = 1;
            c.fillText((n * step).toFixed(digits(step)), x, this.plot + 6);
        }
        c.fillText(`time (${unit}), ${about.clock}`, GUTTER + this.across() / 2, this.plot + 21);

        let every = 1;
        while (every * this.lane < 14) every *= 2;
        c.textAlign = "right";
        c.textBaseline = "middle";
        for (let rank = Math.ceil(this.first / every) * every; rank < this.last; rank += every) {
            const y = (rank + 0.5) * this.lane - this.top;
            if (y > -2 && y < this.plot - 3) c.fillText(String(rank), GUTTER - 6, y);
        }
        c.save();
        c.translate(9, this.plot / 2);
        c.rotate(-Math.PI / 2);
        c.textAlign = "center";
        c.fillText("rank", 0, 0);
        c.restore();

        const all = about.worldSize * this.lane;
        if (all > this.plot + 1) {
            c.globalAlpha = 0.35;
            c.fillRect(this.width - 6, (this.top / all) * this.plot, 4, (this.plot / all) * this.plot);
            c.globalAlpha = 1;
        }
    }
}

async function render({ model, el }) {
    const root = document.createElement("div");
    el.appendChild(root);
    const about = model.get("about");
    const columns = await unpack(model.get("data"), about.layout);
    const viewer = new Viewer(root, about, columns, () => {
        model.set("path_wanted", true);
        model.save_changes();
    });
    const pathArrived = () => {
        const view = model.get("path");
        viewer.path = new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
        viewer.bringPathIntoView();
        viewer.redraw();
    };
    model.on("change:path", pathArrived);
    if (model.get("path").byteLength) pathArrived();
    return () => {
        model.off("change:path", pathArrived);
        viewer.close();
    };
}

export default { render };
