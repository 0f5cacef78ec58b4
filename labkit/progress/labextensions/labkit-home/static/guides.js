// Guides, open in JupyterLab: a link to an exercise opens the learner's own notebook in place of the solved one of the
// course, and a line above the page leads back to the course home.
import { element } from "./element.js";
import { OPEN, course } from "./search.js";
import { panels, watch } from "./watch.js";

const GUIDE = ".jp-MarkdownViewer";

export function guides({ Widget }) {
  return {
    id: "labkit-home:guides",
    description: "Leads from the guides to the learner's notebooks and to the course home.",
    autoStart: true,
    activate: async (app) => {
      const { guides, solved, own } = (await course(app)) ?? {};
      // null: not served; "": all that is served
      if (typeof guides !== "string" || typeof solved !== "string" || typeof own !== "string") return;
      const inOwn = (path) => (own ? `${own}/${path}` : path);
      const isOwn = (path) => (own ? path.startsWith(`${own}/`) : !path.startsWith(`${guides}/`));
      watch(GUIDE, (node) => addWayHome(app, Widget, node, isOwn, inOwn("HOME.md")));
      // before JupyterLab's own listener, which is on the link itself
      document.addEventListener("click", (event) => openOwn(app, event, solved, inOwn), true);
    },
  };
}

function addWayHome(app, Widget, node, isOwn, path) {
  const panel = panels(app, node)[0];
  if (!panel?.node.contains(node) || isOwn(panel.context.path)) return;
  const link = element("a", { href: "#", class: "labkit-way-home" }, "← Course home");
  link.addEventListener("click", (event) => {
    event.preventDefault();
    app.commands.execute("docmanager:open", { path });
  });
  link.style.color = "var(--jp-content-link-color)";
  link.style.padding = "0 8px";
  panel.toolbar.addItem("labkit-way-home", new Widget({ node: element("div", {}, link) }));
}

async function openOwn(app, event, solved, inOwn) {
  const link = event.target.closest?.(`${GUIDE} a[href]`);
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const files = `${app.serviceManager.serverSettings.baseUrl}files/`;
  const { href, hash } = new URL(link.href, document.baseURI);
  const path = href.startsWith(files) ? decodeURIComponent(href.slice(files.length).replace(/[?#].*$/, "")) : "";
  if (!path.startsWith(`${solved}/`)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const copy = inOwn(path.slice(solved.length + 1));
  const opened = await app.serviceManager.contents.get(copy, { content: false }).then(
    () => copy,
    () => path, // the learner has removed the copy
  );
  app.commands.execute(OPEN, { path: opened, id: hash });
}
