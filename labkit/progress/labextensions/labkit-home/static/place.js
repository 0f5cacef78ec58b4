// Where the learner works: the cell in front is saved on the server, so that the course home leads back to it, also on
// another machine with the same files.
import { course } from "./search.js";

const SECONDS_BETWEEN_LOOKS = 5;

export function place({ ServerConnection }) {
  return {
    id: "labkit-home:place",
    description: "Saves the cell in which the learner works.",
    autoStart: true,
    activate: async (app) => {
      if ((await course(app)) === null) return;
      let saved = "";
      setInterval(async () => {
        // tabs that JupyterLab restores are no place before the learner has done anything
        if (document.hidden || !navigator.userActivation.hasBeenActive) return;
        const body = here(app.shell.currentWidget);
        if (body === null || body === saved) return;
        saved = body;
        const { serverSettings } = app.serviceManager;
        const init = { method: "PUT", body };
        await ServerConnection.makeRequest(`${serverSettings.baseUrl}labkit/place`, init, serverSettings).catch(
          () => {},
        );
      }, 1000 * SECONDS_BETWEEN_LOOKS);
    },
  };
}

function here(panel) {
  const notebook = panel?.content;
  const cell = notebook?.activeCell?.model;
  if (!cell || !panel.context?.path.endsWith(".ipynb")) return null;
  const above = notebook.widgets.slice(0, notebook.activeCellIndex + 1).reverse();
  const headings = above.map(({ model }) => model.type === "markdown" && /^#+ +(.+)$/m.exec(model.sharedModel.source));
  const heading = headings.find(Boolean)?.[1] ?? "";
  return JSON.stringify({ path: panel.context.path, cell: cell.id, heading: heading.replaceAll("`", "") });
}
