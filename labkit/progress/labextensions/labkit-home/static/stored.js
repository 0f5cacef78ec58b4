// A widget that a notebook has stored, and whose kernel is gone: shows the text that is stored with it.
import { panels, watch } from "./watch.js";

const VIEW = "application/vnd.jupyter.widget-view+json";
const LOST = "model not found";

export const stored = {
  id: "labkit-home:stored",
  description: "Shows a stored widget without its kernel as text.",
  autoStart: true,
  activate: (app) => watch(".jp-OutputArea-output.jupyter-widgets", (node) => replace(app, node)),
};

async function replace(app, node) {
  if (!node.textContent.includes(LOST)) return;
  const panel = panels(app, node)[0]?.content;
  const cell = panel?.widgets?.find((each) => each.node.contains(node));
  const area = cell?.outputArea;
  const at = [...(area?.node.children ?? [])].findIndex((child) => child.contains(node));
  if (at < 0) return;
  const { [VIEW]: view, ...data } = area.model.get(at).data;
  if (view === undefined) return;
  const type = ["text/markdown", "text/plain"].find((each) => each in data);
  const renderer = panel.rendermime.createRenderer(type ?? "text/markdown");
  const text = data[type] ?? "*Run this cell again to bring back what could be moved here.*";
  await renderer.renderModel({ data: { [type ?? "text/markdown"]: text }, metadata: {}, trusted: false });
  node.classList.remove("jupyter-widgets");
  node.replaceChildren(renderer.node);
}
