/* Pictures that stay alive without a kernel: the notebooks' own viewer and player, given what was recorded.
 *
 * A recording is a script that calls `labkitLive.arrived`: browsers let a page that is opened as a file load scripts, and
 * nothing else. It is loaded when its picture comes near the screen; until then, and in print, the picture is shown.
 */

window.labkitLive = { widgets: {}, places: new Map() };

(() => {
    const { widgets, places } = window.labkitLive;

    function bytes(text) {
        return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    }

    /** What the viewer needs of a widget's model; the critical path arrives when it is wanted. */
    function timelineModel({ about, data, path }) {
        const values = { about, data: bytes(data), path: new Uint8Array(0) };
        const listeners = new Set();
        return {
            get: (name) => values[name],
            set: () => (values.path = bytes(path)),
            save_changes: () => listeners.forEach((listener) => listener()),
            on: (event, listener) => listeners.add(listener),
            off: (event, listener) => listeners.delete(listener),
        };
    }

    /** What the player needs of a widget's model: each frame that it asks for arrives. */
    function playerModel({ about, frames }) {
        const listeners = new Set();
        const answer = ({ light, dark, ...frame }) =>
            listeners.forEach((listener) => listener(frame, [bytes(light), bytes(dark)]));
        return {
            get: () => about,
            send: ({ step }) => setTimeout(() => answer(frames[step])),
            on: (event, listener) => listeners.add(listener),
            off: (event, listener) => listeners.delete(listener),
        };
    }

    window.labkitLive.arrived = async (name, recording) => {
        const { kind } = recording;
        const model = kind === "viewer" ? timelineModel(recording) : playerModel(recording);
        for (const place of places.get(name)) {
            const live = document.createElement("div");
            live.className = "live";
            place.append(live);
            await widgets[kind].render({ model, el: live });
            place.dataset.state = "live";
        }
    };

    function load(place) {
        const { name, recording } = place.dataset;
        const known = places.get(name);
        if (known) return known.push(place);
        places.set(name, [place]);
        const script = document.createElement("script");
        script.src = recording;
        document.head.append(script);
    }

    /** The viewer and the player know JupyterLab's name for the colour scheme of the page. */
    function followScheme() {
        const { theme } = document.body.dataset;
        const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
        document.body.dataset.jpThemeLight = String(!dark);
    }

    document.addEventListener("DOMContentLoaded", () => {
        followScheme();
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followScheme);
        new MutationObserver(followScheme).observe(document.body, { attributeFilter: ["data-theme"] });
        const near = new IntersectionObserver(
            (entries) => {
                for (const { isIntersecting, target } of entries) {
                    if (!isIntersecting) continue;
                    near.unobserve(target);
                    load(target);
                }
            },
            { rootMargin: "600px" },
        );
        for (const place of document.querySelectorAll(".labkit-live")) near.observe(place);
    });
})();
