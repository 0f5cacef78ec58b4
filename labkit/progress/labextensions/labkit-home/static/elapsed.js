// A cell that runs says for how long, after a second, until it shows something of its own. Whatever is slow is seen to
// be at work: imports, the first cell of a notebook, a loop of the learner's.
import { element } from "./element.js";
import { panels, watch } from "./watch.js";

const QUIET_SECONDS = 1;

export const elapsed = {
  id: "labkit-home:elapsed",
  description: "Shows for how long a cell has run that shows nothing yet.",
  autoStart: true,
  activate: (app) => watch(".jp-NotebookPanel", (node) => follow(panels(app, node)[0])),
};

function follow(panel) {
  if (!panel?.sessionContext || !panel.content?.model) return;
  const shown = new Map(); // what ends each display, by the number of the cell's request
  panel.sessionContext.iopubMessage.connect((context, message) => {
    const request = message.parent_header.msg_id;
    if (message.header.msg_type === "execute_input") {
      const cell = panel.content.widgets.find((one) => one.outputArea?.future?.msg.header.msg_id === request);
      if (cell) shown.set(request, show(cell));
    } else if (message.header.msg_type === "status" && message.content.execution_state === "idle") {
      shown.get(request)?.();
      shown.delete(request);
    }
  });
  panel.sessionContext.kernelChanged.connect(() => {
    shown.forEach((end) => end());
    shown.clear();
  });
}

// Show the time beside the cell; return what ends that.
function show(cell) {
  const began = performance.now();
  const line = element("div", { class: "labkit-elapsed", role: "timer" });
  line.style.cssText = "padding: 4px 0 0 calc(var(--jp-cell-prompt-width) + 8px); color: var(--jp-ui-font-color2);";
  const tick = () => {
    const seconds = Math.floor((performance.now() - began) / 1000);
    if (cell.isDisposed || seconds < QUIET_SECONDS || cell.outputArea.model.length) return line.remove();
    line.textContent = `running, ${seconds < 60 ? "" : `${Math.floor(seconds / 60)} min `}${seconds % 60} s`;
    if (!line.isConnected) cell.node.querySelector(".jp-Cell-inputWrapper")?.after(line);
  };
  const timer = setInterval(tick, 250);
  return () => {
    clearInterval(timer);
    line.remove();
  };
}
