/* Figures of the site's pages: what was recorded from runs, drawn and moved. No library, no request, no style attribute.
 *
 * A figure is an element with `data-figure`; its recording is the JSON in it (labkit/site/figures). Times are whole
 * numbers of ticks since the run began. Bars have their place in percent of the lane, so a page may have any width.
 */

(() => {
    "use strict";

    const SVG = "http://www.w3.org/2000/svg";
    const LANE = 30;
    const stillness = matchMedia("(prefers-reduced-motion: reduce)");

    function svg(name, attributes, text) {
        const made = document.createElementNS(SVG, name);
        for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
        if (text !== undefined) made.textContent = text;
        return made;
    }

    function html(name, className, text) {
        const made = document.createElement(name);
        made.className = className;
        if (text !== undefined) made.textContent = text;
        return made;
    }

    const percent = (share) => `${(100 * share).toFixed(3)}%`;
    const round = (number) => String(Number(number.toPrecision(3)));

    /** A step of 1, 2 or 5 times a power of ten, for at most `most` ticks up to `end`. */
    function tickStep(end, most) {
        const power = 10 ** Math.floor(Math.log10(end / most));
        return power * [1, 2, 5, 10].find((factor) => end / (power * factor) <= most);
    }

    /** Lanes with bars over an axis of time; it is drawn again when its width changes. */
    class Lanes {
        constructor(place, names) {
            this.picture = svg("svg", { role: "img", height: names.length * LANE + 34 });
            const labels = html("div", "names");
            labels.setAttribute("aria-hidden", "true");
            labels.append(...names.map((name) => html("span", "", name)));
            place.append(labels, this.picture);
            this.count = names.length;
            this.width = 0;
            new ResizeObserver(() => this.width !== this.picture.clientWidth && this.again()).observe(this.picture);
        }

        /** bars: { lane, start, end, kind, label }; end: of the axis; ticksPerUnit, unit: of its labels. */
        draw(drawing) {
            this.drawing = drawing;
            this.again();
        }

        again() {
            if (!this.drawing) return;
            const { bars, end, ticksPerUnit, unit, marks = [], label } = this.drawing;
            this.width = this.picture.clientWidth;
            const parts = [];
            for (let lane = 0; lane < this.count; lane++) {
                parts.push(svg("rect", { class: "lane", x: 0, y: lane * LANE + 3, width: "100%", height: LANE - 6 }));
            }
            for (const bar of bars) parts.push(...this.bar(bar, end));
            for (const { at, kind } of marks) {
                const x = percent(at / end);
                parts.push(svg("line", { class: kind, x1: x, x2: x, y1: 0, y2: this.count * LANE }));
            }
            const step = tickStep(end / ticksPerUnit, this.width < 360 ? 4 : 8);
            for (let tick = 0; tick <= (end / ticksPerUnit) * 1.0001; tick += step) {
                const at = (tick * ticksPerUnit) / end;
                const anchor = at === 0 ? "start" : at > 0.96 ? "end" : "middle";
                const y = this.count * LANE + 14;
                parts.push(svg("text", { class: "tick", x: percent(at), y, "text-anchor": anchor }, round(tick)));
            }
            const y = this.count * LANE + 29;
            parts.push(svg("text", { class: "tick", x: "50%", y, "text-anchor": "middle" }, `time (${unit})`));
            this.picture.setAttribute("aria-label", label);
            this.picture.replaceChildren(...parts);
        }

        bar({ lane, start, end: until, kind, label = "" }, end) {
            if (until <= start) return [];
            const y = lane * LANE + 3;
            const share = (until - start) / end;
            const place = { x: percent(start / end), y, width: percent(share), height: LANE - 6 };
            const parts = [svg("rect", { class: `bar ${kind}`, ...place })];
            if (label && share * this.width > 7 * label.length + 4) {
                const x = percent((start + until) / 2 / end);
                const about = { class: `label ${kind}`, x, y: y + 16, "text-anchor": "middle" };
                parts.push(svg("text", about, label));
            }
            return parts;
        }
    }

    /** Points over the places of a slider, of which the reader has seen some. */
    class Curve {
        /** values: those of all points; line: a curve that is known before; labels: below the points. */
        constructor(place, { labels, low, high, line = [], format }) {
            this.picture = svg("svg", { "aria-hidden": "true", height: 78 });
            place.append(this.picture);
            Object.assign(this, { labels, low, high, line, format });
        }

        x(number) {
            return percent(this.labels.length > 1 ? number / (this.labels.length - 1) : 0);
        }

        y(value) {
            return 52 - (36 * (value - this.low)) / (this.high - this.low);
        }

        /** seen: the values by number; now: number of the one that is shown; best: number of the one to be marked. */
        draw(seen, now, best) {
            const parts = [];
            this.line.slice(1).forEach((value, at) => {
                const ends = { x1: this.x(at), y1: this.y(this.line[at]), x2: this.x(at + 1), y2: this.y(value) };
                parts.push(svg("line", { class: "formula", ...ends }));
            });
            this.labels.forEach((label, number) => {
                parts.push(svg("text", { class: "tick", x: this.x(number), y: 74, "text-anchor": "middle" }, label));
                parts.push(svg("line", { class: "stop", x1: this.x(number), x2: this.x(number), y1: 56, y2: 60 }));
            });
            for (const [number, value] of seen) {
                const kind = number === now ? "point now" : number === best ? "point best" : "point";
                parts.push(svg("circle", { class: kind, cx: this.x(number), cy: this.y(value), r: 4.5 }));
                if (number !== now && number !== best) continue;
                const about = { class: "value", x: this.x(number), y: this.y(value) - 8, "text-anchor": "middle" };
                parts.push(svg("text", about, this.format(value)));
            }
            this.picture.replaceChildren(...parts);
        }
    }

    /** Fill in the figures in large print, in their order on the page. */
    function numbers(figure, values) {
        figure.querySelectorAll(".numbers dd").forEach((place, at) => (place.textContent = values[at]));
    }

    /** A program, its timeline and what the lab says of it; it is played, or shown at a moment. */
    function skippedBarrier(figure, { changed, runs }) {
        const at = (selector) => figure.querySelector(selector);
        const [play, time, status] = [".play", ".time", ".status"].map(at);
        const choices = [...figure.querySelectorAll("input[type=radio]")];
        const diagnoses = [...figure.querySelectorAll(".verdict > .diagnosis:not(.pending)")];
        const lanes = new Lanes(at(".chart"), [0, 1, 2, 3].map((rank) => `rank ${rank}`));
        // the longest run, and room in which those that wait are seen to wait
        const end = 1.25 * Math.max(...runs.flatMap(({ bars }) => bars.map((bar) => bar[3])));
        let [run, now, frame] = [null, 0, 0];

        function choose() {
            run = runs[choices.findIndex((choice) => choice.checked)];
            const until = Math.max(...run.bars.map((bar) => bar[3]));
            run.last = run.waiting.length ? until + 0.2 * end : until;
            const line = at(`[data-line="${changed}"] code`);
            line.textContent = line.textContent.replace(/\d+/, run.batches);
            // every moment at which something begins or ends
            run.moments = [...new Set([0, ...run.bars.flatMap((bar) => bar.slice(2)), run.last])].sort((a, b) => a - b);
        }

        /** Which ranks are in the barrier at this moment. */
        function inBarrier() {
            const inside = run.bars.filter(([, kind, from, to]) => kind === "collective" && from <= now && now < to);
            const waiting = run.waiting.filter(([, since]) => since <= now);
            return [...inside, ...waiting].map(([rank]) => rank).sort();
        }

        function show(moment) {
            now = Math.min(moment, run.last);
            const over = now >= run.last;
            time.value = (100 * now) / run.last;
            const bars = run.bars.map(([lane, kind, from, to]) => ({ lane, start: from, end: to, kind: `${kind} ghost` }));
            for (const [lane, kind, from, to] of run.bars) {
                const label = kind === "collective" ? "barrier" : "";
                bars.push({ lane, start: from, end: Math.min(to, now), kind, label: to <= now ? label : "" });
            }
            for (const [lane, since] of run.waiting) {
                const waits = now > since && { start: since, end: now, kind: "collective open" };
                if (waits) bars.push({ lane, ...waits, label: over ? "waits" : "" });
            }
            const ended = run.ended.filter(([, when]) => when <= now);
            for (const [lane, when] of run.waiting.length ? ended : []) {
                bars.push({ lane, start: when, end: end, kind: "gone", label: "ended" });
            }
            const ranks = inBarrier();
            const place = ranks.length ? `in the barrier: ${ranks.join(", ")}` : "no rank is in the barrier";
            const label = `Timeline of four ranks. After ${Math.round(now / 1000)} µs: ${place}.`;
            lanes.draw({ bars, end, ticksPerUnit: 1000, unit: "µs", marks: [{ at: now, kind: "now" }], label });
            time.setAttribute("aria-valuetext", `${Math.round(now / 1000)} µs, ${place}`);
            for (const here of figure.querySelectorAll(".here")) here.replaceChildren();
            at(`[data-line="${run.line}"] .here`).append(...ranks.map((rank) => html("i", "", rank)));
            at(`[data-line="${run.line}"]`).classList.toggle("stuck", over && run.waiting.length > 0);
            at(".pending").classList.toggle("shown", !over);
            diagnoses.forEach((diagnosis, number) => {
                diagnosis.classList.toggle("shown", over && runs[number] === run);
            });
            const said = diagnoses[runs.indexOf(run)];
            const cause = said.querySelector("mark") ?? said;
            status.textContent = over ? `The lab says: ${cause.textContent}` : "";
            if (over) stop();
            else if (!frame) play.textContent = stillness.matches ? "Next moment" : "Play";
        }

        function stop() {
            cancelAnimationFrame(frame);
            frame = 0;
            play.classList.remove("playing");
            play.textContent = now >= run.last ? "Again" : "Play";
        }

        /** A run takes five seconds. */
        function start() {
            const from = now;
            let began;
            play.classList.add("playing");
            play.textContent = "Pause";
            const next = (clock) => {
                began ??= clock;
                frame = requestAnimationFrame(next);
                show(from + ((clock - began) / 5000) * end);
            };
            frame = requestAnimationFrame(next);
        }

        play.addEventListener("click", () => {
            if (frame) return stop();
            if (now >= run.last) show(0);
            if (stillness.matches) show(run.moments.find((moment) => moment > now));
            else start();
        });
        time.addEventListener("input", () => {
            if (frame) stop();
            show((run.last * Number(time.value)) / 100);
        });
        for (const choice of choices) {
            choice.addEventListener("change", () => {
                if (frame) stop();
                choose();
                show(0);
            });
        }
        stillness.addEventListener("change", () => show(now));
        // on paper, a run is shown to its end
        let before = 0;
        matchMedia("print").addEventListener("change", ({ matches }) => {
            if (frame) stop();
            if (matches) before = now;
            show(matches ? run.last : before);
        });
        choose();
        show(0);
    }

    /** Steps of data-parallel training with buckets of several sizes. */
    function buckets(figure, { runs }) {
        const at = (selector) => figure.querySelector(selector);
        const [slider, status] = [at(".choice"), at(".status")];
        const lanes = new Lanes(at(".chart"), ["GPU", "network"]);
        const steps = runs.map(({ seconds }) => seconds);
        const curve = new Curve(at(".curve"), {
            labels: runs.map(({ size }) => size),
            low: Math.min(...steps),
            high: Math.max(...steps),
            format: (seconds) => `${(1000 * seconds).toFixed(1)} ms`,
        });
        const seen = new Map();
        const end = Math.max(...steps) * 1e6;

        function show() {
            const number = Number(slider.value);
            const { size, seconds, hidden, forward, computing, messages } = runs[number];
            seen.set(number, seconds);
            const best = [...seen.keys()].reduce((a, b) => (seen.get(a) <= seen.get(b) ? a : b));
            const computed = Math.max(...computing.map((bar) => bar[1]));
            const bars = [];
            for (const [from, to] of computing) {
                bars.push({ lane: 0, start: from, end: Math.min(to, forward), kind: "compute", label: "forward" });
                const label = messages.length < 8 ? "backward" : "";
                bars.push({ lane: 0, start: Math.max(from, forward), end: to, kind: "backward", label });
            }
            const stop = 1e6 * seconds;
            bars.push({ lane: 0, start: computed, end: stop, kind: "waits", label: "waits" });
            let free = 0;
            for (const [called, to, nbytes] of messages) {
                // messages of one group travel one after the other
                const label = `${round(nbytes / 2 ** 20)} MB`;
                bars.push({ lane: 1, start: Math.max(called, free), end: to, kind: "collective", label });
                free = to;
            }
            const exposed = stop - computed;
            const share = `${Math.round(100 * hidden)} %`;
            const words = `step ${(1000 * seconds).toFixed(1)} ms, ${share} of the communication is hidden`;
            const label = `Timeline of one of 16 GPUs. Buckets of ${size} MB: ${messages.length} messages, ${words}.`;
            lanes.draw({ bars, end, ticksPerUnit: 1000, unit: "ms", marks: [{ at: stop, kind: "now" }], label });
            curve.draw(seen, number, best);
            at(".chosen").textContent = `${size} MB`;
            slider.setAttribute("aria-valuetext", `${size} MB: ${words}`);
            const time = `${(1000 * seconds).toFixed(1)} ms`;
            numbers(figure, [time, messages.length, share, `${(exposed / 1000).toFixed(1)} ms`]);
            const known = seen.size === runs.length ? "of all" : `of ${seen.size} seen`;
            status.textContent = seen.size > 1 ? `Fastest ${known}: ${runs[best].size} MB` : "";
        }

        slider.addEventListener("input", show);
        show();
    }

    /** What each rank did, from letters, and for each of them a wait and a length. */
    function* blocksOf([letters, steps]) {
        let now = 0;
        const seen = { f: 0, b: 0 };
        for (const [at, letter] of [...letters].entries()) {
            const start = now + steps[2 * at];
            now = start + steps[2 * at + 1];
            yield { start, end: now, kind: letter === "f" ? "compute" : "backward", label: String(seen[letter]++) };
        }
    }

    /** Steps of a pipeline with some number of microbatches. */
    function microbatches(figure, { runs }) {
        const at = (selector) => figure.querySelector(selector);
        const [slider, status] = [at(".choice"), at(".status")];
        const schedules = [...figure.querySelectorAll("input[type=radio]")];
        const [stages, most] = [4, Number(slider.max)];
        const formula = Array.from({ length: most }, (_, at) => (stages - 1) / (at + stages));
        const lanes = new Lanes(at(".chart"), [0, 1, 2, 3].map((rank) => `GPU ${rank}`));
        const shares = (share) => `${(100 * share).toFixed(0)} %`;
        const labels = formula.map((_, at) => at + 1);
        const curve = new Curve(at(".curve"), { labels, low: 0, high: 0.8, line: formula, format: shares });
        const seen = new Map(Object.keys(runs).map((name) => [name, new Map()]));

        function show() {
            const count = Number(slider.value);
            const { value: name, parentNode } = schedules.find((choice) => choice.checked);
            const { seconds, bubble, kept, ranks } = runs[name][count - 1];
            seen.get(name).set(count - 1, bubble);
            const bars = ranks.flatMap((rank, lane) => [...blocksOf(rank)].map((block) => ({ lane, ...block })));
            const end = 1e5 * seconds;
            const words = `${parentNode.textContent}: bubble ${shares(bubble)}, ${(1000 * seconds).toFixed(0)} ms`;
            const plural = count === 1 ? "microbatch" : "microbatches";
            const label = `Timeline of a pipeline on 4 GPUs, ${count} ${plural}. ${words}.`;
            lanes.draw({ bars, end, ticksPerUnit: 100, unit: "ms", label });
            curve.draw(seen.get(name), count - 1);
            at(".chosen").textContent = count;
            slider.setAttribute("aria-valuetext", `${count}: ${words}`);
            const [measured, expected] = [bubble, formula[count - 1]].map((share) => `${(100 * share).toFixed(1)} %`);
            numbers(figure, [measured, expected, `${(1000 * seconds).toFixed(0)} ms`, `${kept} of ${count}`]);
            status.textContent = words;
        }

        for (const control of [slider, ...schedules]) control.addEventListener("input", show);
        show();
    }

    // a slider is of no use on paper, a table is
    matchMedia("print").addEventListener("change", ({ matches }) => {
        for (const table of document.querySelectorAll(".lab-figure details")) table.open = matches;
    });

    const kinds = { skipped_barrier: skippedBarrier, buckets, microbatches };
    for (const figure of document.querySelectorAll(".lab-figure")) {
        kinds[figure.dataset.figure](figure, JSON.parse(figure.querySelector("script").textContent));
    }
})();
