/* A question: an input or a choice, a button, and the reply, which the kernel judges.
 *
 * The reply is HTML that labkit.notebook.questions.markdown made, with everything that was typed escaped.
 */

const LATE = 4000; // milliseconds after which the page says that there is no reply

function element(name, className, parent) {
    const node = document.createElement(name);
    node.className = className;
    parent?.append(node);
    return node;
}

function render({ model, el }) {
    const about = model.get("about");
    // each widget has its own copy of this module, so a counter would begin again
    const id = `labkit-question-${Math.random().toString(36).slice(2)}`;
    el.classList.add("labkit-question");
    el.dataset.lmSuppressShortcuts = "true"; // else the letters of JupyterLab's commands act on the cell
    const form = element("div", "form", el);
    const read = about.kind === "choice" ? choices(form, about, id) : input(form, about, id);
    // not "row": JupyterLab's style sheet puts an empty element at the beginning of each of those
    const row = about.kind === "choice" ? element("div", "buttons", form) : form;
    const check = element("button", "check", row);
    check.type = "button";
    check.textContent = about.button;
    const show = element("button", "show", row);
    show.type = "button";
    show.textContent = "Show me";
    const reply = element("div", "reply", el);
    reply.id = `${id}-reply`;
    reply.setAttribute("role", "status"); // read aloud when it changes

    let late = 0;
    let busy = false; // whether a reply is awaited

    function draw() {
        clearTimeout(late);
        const attempt = model.get("attempt");
        read.show(attempt);
        el.dataset.verdict = attempt.verdict;
        reply.innerHTML = attempt.html;
        show.hidden = !attempt.mayReveal;
        busy = false;
    }

    function ask(message) {
        if (busy) return;
        busy = true;
        late = setTimeout(() => {
            busy = false;
            el.dataset.verdict = "";
            reply.textContent = "No reply yet. If the kernel is busy, it follows; if it was restarted, run this cell again.";
        }, LATE);
        model.send(message);
    }

    function submit() {
        ask({ kind: "check", given: read.given() });
    }

    check.addEventListener("click", submit);
    form.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !(event.target instanceof HTMLInputElement)) return;
        event.preventDefault();
        event.stopPropagation();
        submit();
    });
    show.addEventListener("click", () => ask({ kind: "reveal" }));
    model.on("change:attempt", draw);
    draw();
    return () => {
        clearTimeout(late);
        model.off("change:attempt", draw);
    };
}

/** A line of text, with its label before and the unit behind it. */
function input(form, about, id) {
    const label = element("label", "label", form);
    label.textContent = about.label;
    label.htmlFor = id;
    const field = element("input", about.kind, form);
    field.id = id;
    field.type = "text";
    field.autocomplete = "off";
    field.spellcheck = false;
    field.setAttribute("autocapitalize", "off");
    field.setAttribute("aria-describedby", `${id}-unit ${id}-reply`);
    const unit = element("span", "unit", form);
    unit.id = `${id}-unit`;
    unit.textContent = about.unit;
    return {
        given: () => field.value,
        show(attempt) {
            if (document.activeElement !== field) field.value = attempt.given;
            field.setAttribute("aria-invalid", String(["wrong", "unread"].includes(attempt.verdict)));
        },
    };
}

/** Radio buttons, one below the other. */
function choices(form, about, id) {
    const group = element("fieldset", "choices", form);
    element("legend", "label", group).textContent = about.label;
    const radios = about.options.map((option) => {
        const label = element("label", "option", group);
        const radio = element("input", "radio", label);
        radio.type = "radio";
        radio.name = id;
        radio.value = option.given;
        element("span", "text", label).innerHTML = option.html;
        return radio;
    });
    // JupyterLab prevents what arrow keys do by themselves
    const ways = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    group.addEventListener("keydown", (event) => {
        if (!(event.key in ways)) return;
        event.preventDefault();
        const chosen = radios[(radios.indexOf(event.target) + ways[event.key] + radios.length) % radios.length];
        chosen.checked = true;
        chosen.focus();
    });
    return {
        given: () => radios.find((radio) => radio.checked)?.value ?? "",
        show(attempt) {
            for (const radio of radios) radio.checked = radio.value === attempt.given;
        },
    };
}

export default { render };
