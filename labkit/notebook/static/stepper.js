/* The player of labkit.notebook.stepper: shows a step's picture, light or dark, and asks the kernel for each one once. */

function element(parent, tag, className, text = "") {
    const made = parent.appendChild(document.createElement(tag));
    made.className = className;
    made.textContent = text;
    return made;
}

function isDark() {
    const light = document.body.dataset.jpThemeLight;
    return light === "false" || (light === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
}

class Player {
    constructor(root, about, ask) {
        Object.assign(this, { root, about, ask });
        this.frames = new Map(); // step -> {alt, width, height, light, dark}
        this.asked = new Set();
        this.wanted = about.start;
        this.timer = null;
        this.build();
        this.show(about.start);
        this.observer = new MutationObserver(() => this.draw());
        this.observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    }

    build() {
        const { root, about } = this;
        root.className = "labkit-stepper";
        root.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys would move to another cell
        root.setAttribute("role", "group");
        root.setAttribute("aria-label", `pictures by ${about.name}`);
        this.pictures = element(root, "div", "frames");
        // two images: the next one appears over the last one
        this.images = [0, 1].map(() => element(this.pictures, "img", ""));
        for (const image of this.images) image.alt = "";
        const bar = element(root, "div", "bar");
        const button = (className, text, label, action) => {
            const made = element(bar, "button", className, text);
            made.type = "button";
            made.title = label;
            made.addEventListener("click", action);
            return made;
        };
        this.back = button("", "◀", "one step back", () => this.move(this.wanted - 1));
        this.play = button("play", "", "play or pause (Space on the slider)", () => this.toggle());
        this.next = button("", "▶", "one step on", () => this.move(this.wanted + 1));
        for (const step of [this.back, this.next]) step.setAttribute("aria-label", step.title);
        this.slider = element(bar, "input", "");
        Object.assign(this.slider, { type: "range", min: 0, max: about.last, step: 1, value: about.start });
        this.slider.setAttribute("aria-label", about.name);
        this.slider.addEventListener("input", () => this.move(Number(this.slider.value)));
        // JupyterLab prevents what arrow keys do by themselves
        const keys = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };
        this.slider.addEventListener("keydown", (event) => {
            if (event.key !== " " && !(event.key in keys)) return;
            event.preventDefault();
            if (event.key === " ") this.toggle();
            else this.move(this.wanted + keys[event.key]);
        });
        this.label = element(bar, "span", "label");
        // who comes near is likely to play: then the kernel draws all steps, one after the other
        for (const name of ["pointerenter", "focusin"]) root.addEventListener(name, () => this.fetchRest(), { once: true });
    }

    /** Go to a step by hand. */
    move(step) {
        this.pause();
        this.show(step);
    }

    show(step) {
        this.wanted = Math.min(Math.max(step, 0), this.about.last);
        this.request(this.wanted);
        this.draw();
    }

    toggle() {
        if (this.playing) this.pause();
        else {
            this.playing = true;
            if (this.wanted === this.about.last) this.show(0);
            this.wait();
        }
        this.draw();
    }

    pause() {
        this.playing = false;
        clearTimeout(this.timer);
    }

    wait() {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => {
            if (!this.frames.has(this.wanted)) return this.wait(); // the kernel still draws it
            this.show(this.wanted + 1);
            if (this.wanted === this.about.last) this.pause();
            else this.wait();
            this.draw();
        }, this.about.seconds * 1000);
    }

    request(step) {
        if (this.asked.has(step)) return;
        this.asked.add(step);
        this.ask(step);
    }

    /** Ask for the nearest step that is missing; its arrival asks for the next. */
    fetchRest() {
        this.fetching = true;
        let [nearest, distance] = [-1, Infinity];
        for (let step = 0; step <= this.about.last; step++) {
            const away = step >= this.wanted ? step - this.wanted : this.about.last + this.wanted - step;
            if (!this.asked.has(step) && away < distance) [nearest, distance] = [step, away];
        }
        if (nearest >= 0) this.request(nearest);
    }

    arrived(frame, buffers) {
        const [light, dark] = buffers.map((bytes) => URL.createObjectURL(new Blob([bytes], { type: "image/webp" })));
        this.frames.set(frame.step, { ...frame, light, dark });
        this.draw();
        if (this.fetching) this.fetchRest();
    }

    draw() {
        const { about, wanted, images, root } = this;
        this.slider.value = wanted;
        this.slider.setAttribute("aria-valuetext", `${wanted} of ${about.last}`);
        this.label.textContent = `${about.name}: ${wanted} of ${about.last}`;
        this.play.textContent = this.playing ? "❚❚ pause" : "▶ play";
        this.play.classList.toggle("playing", Boolean(this.playing));
        this.back.disabled = wanted === 0;
        this.next.disabled = wanted === about.last;
        root.toggleAttribute("data-dark", isDark());
        const frame = this.frames.get(wanted);
        if (!frame) return;
        const source = isDark() ? frame.dark : frame.light;
        const [over, under] = images[0].classList.contains("shown") ? [images[1], images[0]] : images;
        if (this.coming === source) return;
        this.coming = under.src === source ? "" : source; // one that is shown cancels another that still loads
        if (!this.coming) return;
        over.onload = () => {
            if (this.coming !== source) return;
            this.coming = "";
            this.pictures.style.width = `${frame.width}px`;
            this.pictures.style.aspectRatio = `${frame.width} / ${frame.height}`;
            over.classList.add("shown");
            under.classList.remove("shown");
            [over.alt, under.alt] = [frame.alt, ""];
            under.setAttribute("aria-hidden", "true");
            over.removeAttribute("aria-hidden");
            root.dataset.step = frame.step;
            this.hideStill();
        };
        over.src = source;
    }

    /** The still picture, which remains in a stored notebook, is an output of the same cell. */
    hideStill() {
        if (this.still) return;
        const area = this.root.closest(".jp-OutputArea");
        const images = area ? [...area.querySelectorAll(".jp-OutputArea-child img")] : [];
        const image = images.find((one) => !this.root.contains(one) && one.alt === this.about.alt);
        this.still = image?.closest(".jp-OutputArea-child");
        if (this.still) this.still.style.display = "none";
    }

    close() {
        this.pause();
        this.observer.disconnect();
        if (this.still) this.still.style.display = "";
        for (const { light, dark } of this.frames.values()) for (const url of [light, dark]) URL.revokeObjectURL(url);
    }
}

function render({ model, el }) {
    const root = document.createElement("div");
    el.appendChild(root);
    let player = null;
    const arrived = (frame, buffers) => player.arrived(frame, buffers);
    model.on("msg:custom", arrived);
    player = new Player(root, model.get("about"), (step) => model.send({ step }));
    return () => {
        model.off("msg:custom", arrived);
        player.close();
    };
}

export default { render };
