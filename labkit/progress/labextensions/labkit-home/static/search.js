// Search over the learner's notebooks and all guides: a box on the course home, and the same in the left side bar. The
// server finds; where it does not offer to (JupyterLab was not started by the lab), there is no box.
import { element } from "./element.js";
import { STYLE } from "./search_style.js";

const MILLISECONDS_OF_REST = 250; // after a key, before the server is asked
export const OPEN = "rendermime:handle-local-link"; // JupyterLab's own: opens a file, and goes to a place in it

let boxes = 0;

export function search({ Widget }, { searchIcon }) {
  return {
    id: "labkit-home:search",
    description: "Search over all notebooks and guides in the left side bar.",
    autoStart: true,
    activate: async (app) => {
      if ((await course(app)) === null) return;
      const panel = new Widget({ node: searchBox(app) });
      panel.id = "labkit-search";
      panel.title.icon = searchIcon;
      panel.title.caption = "Search the course";
      panel.node.setAttribute("aria-label", "Search the course");
      panel.onActivateRequest = () => panel.node.querySelector("input").focus();
      app.shell.add(panel, "left", { rank: 150 });
    },
  };
}

// hidden until it is known that the server searches
export function searchBox(app) {
  const id = `labkit-search-${boxes++}`;
  const root = element("div", { class: "labkit-search", role: "search" });
  const label = element("label", { for: id }, "Search notebooks and guides");
  const input = element("input", { id, type: "search", class: "jp-mod-styled", autocomplete: "off", "data-key": id });
  const status = element("p", { role: "status" });
  const list = element("ol", {});
  root.append(element("style", {}, STYLE), label, input, status, list);
  root.hidden = true;
  course(app).then((answer) => (root.hidden = answer === null));
  let timer;
  let shown = "";
  const look = async () => {
    clearTimeout(timer);
    const words = input.value.trim();
    if (words === shown) return;
    shown = words;
    const hits = words ? await find(app, words) : [];
    if (words !== shown) return; // a later search has begun
    const found = hits ?? [];
    list.replaceChildren(...found.map((hit) => item(app, hit)));
    if (hits === null) status.textContent = "The server does not answer.";
    else if (words && !found.length) status.textContent = `Nothing found for “${words}”.`;
    else status.textContent = found.length ? `${found.length} ${found.length === 1 ? "place" : "places"}` : "";
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, MILLISECONDS_OF_REST);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") look();
  });
  return root;
}

function item(app, hit) {
  const { appUrl, baseUrl } = app.serviceManager.serverSettings;
  const address = `${baseUrl.replace(/\/$/, "")}/${appUrl.replace(/^\//, "")}/tree/${encodeURI(hit.path)}`;
  const name = hit.section === hit.title ? hit.title : `${hit.title}: ${hit.section}`;
  const link = element("a", { href: address }, name);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    app.commands.execute(OPEN, { path: hit.path, id: `#${hit.place}` });
  });
  const parts = hit.excerpt.map(([text, matches]) => (matches ? element("mark", {}, text) : text));
  return element("li", {}, link, element("span", {}, ...parts));
}

// places with these words; null if the server does not search
const find = async (app, words) => (await ask(app, words))?.hits ?? null;

let answered; // asked once for all: the panel, each box and the guides

// what the server says of the course: its folders; null if it does not search
export function course(app) {
  answered ??= ask(app, "").then((answer) => {
    if (answer === null) answered = undefined; // the next one asks again
    return answer;
  });
  return answered;
}

async function ask(app, words) {
  const { baseUrl, token } = app.serviceManager.serverSettings;
  const headers = token ? { Authorization: `token ${token}` } : {};
  try {
    const answer = await fetch(`${baseUrl}labkit/search?q=${encodeURIComponent(words)}`, { headers });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}
