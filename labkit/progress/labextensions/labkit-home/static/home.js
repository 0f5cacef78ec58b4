// The course home in JupyterLab: HOME.md opens as this page, which follows the file while it is visible.
import { Course } from "./course.js";
import { drawEdges } from "./edges.js";
import { element } from "./element.js";
import { OPEN, searchBox } from "./search.js";
import { STYLE } from "./style.js";

const SECONDS_BETWEEN_READS = 2;
const FACTS = /<!-- labkit (.*) -->/;

export function home({ Widget }, { ABCWidgetFactory, DocumentWidget }, services) {
  class Factory extends ABCWidgetFactory {
    constructor(app) {
      const fileTypes = ["labkit-home"];
      // a link in a notebook opens the rendered page
      super({ name: "Course home", fileTypes, defaultFor: fileTypes, defaultRendered: fileTypes, readOnly: true });
      this._app = app;
    }
    createNewWidget(context) {
      // its tab has the file's name: JupyterLab takes another label for a wish to rename the file
      return new DocumentWidget({ content: new Home(this._app, context), context });
    }
  }

  class Home extends Widget {
    constructor(app, context) {
      super();
      this._app = app;
      this._path = context.path;
      this._text = "";
      this._search = searchBox(app);
      this._course = new Course(app, services, (news) => this._write(news));
      this.addClass("labkit-home");
      this.node.tabIndex = 0; // scrolls by keyboard
      this.node.setAttribute("role", "region");
      this.node.setAttribute("aria-label", "Course home");
      context.ready.then(() => this._show(context.model.toString()));
      context.pathChanged.connect(() => (this._path = context.path));
      this._timer = setInterval(() => this._follow(), 1000 * SECONDS_BETWEEN_READS);
    }
    dispose() {
      clearInterval(this._timer);
      super.dispose();
    }
    onAfterShow() {
      this._follow();
      this._draw();
    }
    onAfterHide() {
      this._unseen = true;
    }
    onResize() {
      this._draw();
    }
    onActivateRequest() {
      this.node.focus();
    }

    async _follow() {
      if (!this.isVisible || document.hidden) {
        this._unseen = true;
        return;
      }
      if (this._facts?.classroom) this._course.look(this._unseen); // at once when the page is seen again
      this._unseen = false;
      if (this._reading) return;
      this._reading = true;
      const { contents } = this._app.serviceManager;
      try {
        const { last_modified } = await contents.get(this._path, { content: false });
        if (last_modified !== this._modified) {
          const { content } = await contents.get(this._path, { type: "file", format: "text", content: true });
          this._modified = last_modified;
          if (!this.isDisposed) this._show(content);
        }
      } catch {
        // the server is away, or the file is just being replaced: the next read decides
      } finally {
        this._reading = false;
      }
    }

    _show(text) {
      if (text === this._text) return;
      const first = !this._text;
      this._text = text;
      let facts;
      try {
        facts = JSON.parse(FACTS.exec(text)[1]);
      } catch {
        this.node.replaceChildren(element("pre", {}, text)); // somebody else's HOME.md
        return;
      }
      this._facts = facts;
      this._write(first ? "" : facts.summary);
      this._follow();
    }

    // aloud: what a screen reader says of it
    _write(aloud) {
      if (this.isDisposed || !this._facts) return;
      const facts = this._facts;
      const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
      const scrolled = this.node.scrollTop;
      this.node.replaceChildren(element("style", {}, STYLE), ...this._page(facts));
      this.node.scrollTop = scrolled;
      if (focused) (this.node.querySelector(`[data-key="${focused}"]`) ?? this.node).focus({ preventScroll: true });
      if (aloud) this._status(aloud);
      this._draw();
    }

    _status(text) {
      this.node.querySelector("[role=status]").replaceChildren(text);
    }

    _draw() {
      const map = this.node.querySelector(".labkit-map");
      if (map && this.isVisible) drawEdges(map, this._facts);
    }

    _page(facts) {
      const exercises = facts.phases.flatMap((phase) => phase.exercises);
      const map = element("div", { class: "labkit-map" }, ...facts.phases.map((phase) => this._phase(phase, facts)));
      return [
        element(
          "div",
          { class: "labkit-page" },
          element("h1", {}, "Course home"),
          element("p", { class: "labkit-summary" }, facts.summary),
          element("p", { role: "status", class: "labkit-aloud" }),
          this._classroom(facts.classroom),
          facts.next === null
            ? element("p", {}, "You have completed every exercise.")
            : this._continue(exercises, facts),
          this._search,
          this._tour(facts.tour),
          this._guides(facts.guides ?? []),
          map,
        ),
      ];
    }

    // where one has left off, or the next exercise that can be done
    _continue(exercises, facts) {
      const at = exercises.findIndex((one) => one.number === facts.next);
      const order = [...exercises.slice(at), ...exercises.slice(0, at)].filter((one) => one.state !== "complete");
      const next = order.find((one) => this._course.lack(one) !== "not released") ?? order[0];
      const minutes = `${next.minutes} minutes`;
      if (!this._course.lack(next)) {
        const link = this._link(next, `Continue here: ${next.label}`, "labkit-continue", undefined, next.cell);
        return element("p", {}, link, next.heading ? ` at “${next.heading}”, ${minutes}` : ` ${minutes}`);
      }
      const label = element("strong", {}, `Continue here: ${next.label}`);
      return element("p", {}, label, `, ${minutes}. `, ...this._howToFetch(next, facts));
    }

    _howToFetch(exercise, facts) {
      const assignment = this._course.assignment(exercise);
      if (assignment) return ["Fetch its notebook first:", this._course.fetchButton(assignment)];
      if (this._course.lack(exercise) === "not released") return [`${this._course.isEmpty ? "Nothing" : "Nothing more"} is released yet.`];
      return inline(facts.classroom.fetch); // the hub does not answer
    }

    _tour(steps) {
      const seen = `labkit-tour-seen:${this._app.serviceManager.serverSettings.baseUrl}`;
      const details = element(
        "details",
        { class: "labkit-tour" },
        element("summary", { "data-key": "tour" }, "The lab in two minutes"),
        element("ol", {}, ...steps.map((step) => element("li", {}, ...inline(step)))),
      );
      const close = element("button", { type: "button", class: "jp-mod-styled", "data-key": "close" }, "Got it");
      close.addEventListener("click", () => {
        details.open = false;
        localStorage.setItem(seen, "yes");
        details.querySelector("summary").focus();
      });
      details.append(close);
      const shown = this.node.querySelector(".labkit-tour"); // as it was before the page was written again
      details.open = shown ? shown.open : localStorage.getItem(seen) === null;
      details.addEventListener("toggle", () => this._draw());
      return details;
    }

    _classroom(page) {
      if (!page) return "";
      const link = element("a", { href: page.address, target: "_blank", "data-key": "classroom" }, page.title);
      const warning = this._course.warning();
      return element("p", { class: "labkit-guides" }, link, warning && ` · ${warning}`);
    }

    _guides(guides) {
      if (!guides.length) return "";
      const links = guides.flatMap(({ title, page }, at) => [at ? " · " : "Guides: ", this._guide(title, page)]);
      return element("p", { class: "labkit-guides" }, ...links);
    }

    _guide(title, page) {
      return this._link({ notebook: page, number: title }, title, "labkit-guide", "Markdown Preview");
    }

    _phase(phase, facts) {
      return element(
        "section",
        {},
        element("h2", {}, phase.title),
        facts.classroom ? this._course.line(phase.exercises) : "",
        element("ol", {}, ...phase.exercises.map((one) => this._card(one, facts))),
      );
    }

    _card(one, facts) {
      const current = one.number === facts.next;
      const needs = one.builds_on.map((number) => String(number).padStart(2, "0")).join(", ");
      const lines = [
        `${one.minutes} minutes`,
        needs && `builds on ${needs}`,
        one.answers > 0 && `${one.answers} ${one.answers === 1 ? "question" : "questions"} answered`,
      ].filter(Boolean);
      const bar = element("span", { class: "labkit-bar", "aria-hidden": "true" }, element("span", {}));
      const state = [this._course.lack(one) || one.state, current && "next"].filter(Boolean);
      bar.firstChild.style.width = `${100 * one.share}%`;
      return element(
        "li",
        {
          class: `labkit-card labkit-${one.state.replace(" ", "-")}${current ? " labkit-next" : ""}`,
          "data-number": one.number,
        },
        this._course.lack(one) ? element("strong", {}, one.label) : this._link(one, one.label),
        element("span", { class: "labkit-facts" }, lines.join(" · ")),
        element("span", { class: "labkit-points" }, `${one.points} points`),
        bar,
        facts.classroom ? this._course.marks(one, facts.classroom.address) : "",
        this._course.others(one),
        element("span", { class: "labkit-state" }, state.join(" · ")),
      );
    }

    // opens the notebook as a tab of this window; the address is for a new window
    _link(one, text, className = "", factory = undefined, cell = undefined) {
      const path = [];
      for (const part of [...this._path.split("/").slice(0, -1), ...one.notebook.split("/")]) {
        if (part === "..") path.pop();
        else path.push(part);
      }
      const attributes = { class: className, "data-key": `${className}${one.number}` };
      return this._linkTo(path.join("/"), text, attributes, factory, cell);
    }

    _linkTo(path, text, attributes, factory, cell) {
      const { appUrl, baseUrl } = this._app.serviceManager.serverSettings;
      const address = `${baseUrl.replace(/\/$/, "")}/${appUrl.replace(/^\//, "")}/tree/${encodeURI(path)}`;
      const link = element("a", { href: address, ...attributes }, text);
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        if (cell) this._app.commands.execute(OPEN, { path, id: `#cell-id=${cell}` });
        else this._app.commands.execute("docmanager:open", { path, factory });
      });
      return link;
    }
  }

  return {
    id: "labkit-home:plugin",
    description: "Shows the lab's HOME.md as the course home.",
    autoStart: true,
    activate: (app) => {
      app.docRegistry.addFileType({
        name: "labkit-home",
        displayName: "Course home",
        pattern: "(^|/)HOME\\.md$",
        mimeTypes: ["text/markdown"],
        extensions: [],
        contentType: "file",
        fileFormat: "text",
      });
      app.docRegistry.addWidgetFactory(new Factory(app));
    },
  };
}

// `code` and *emphasis*; everything else is text
function inline(markdown) {
  return markdown.split(/(`[^`]*`|\*[^*]*\*)/).map((part) => {
    if (part.length > 1 && part[0] === "`") return element("code", {}, part.slice(1, -1));
    if (part.length > 1 && part[0] === "*") return element("em", {}, part.slice(1, -1));
    return part;
  });
}
