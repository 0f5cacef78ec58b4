// Lines of the learner's modules, in reports of checks and in tracebacks, lead there: to the cell, else to the file.
import { panels, watch } from "./watch.js";

const REPORT = "[data-labkit-exercise]";
const TRACEBACK = '.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"] pre';
const IN_REPORT = /(?:([\w/]+\.py), |(?<!, ))\bline (\d+)/g;
const IN_TRACEBACK = /(?<![\w/.-])(phase\w+\/\w+\.py)(?:, line |:)(\d+)/g;

export const lines = {
  id: "labkit-home:lines",
  description: "Leads from a line in a report or a traceback to the learner's code.",
  autoStart: true,
  activate: (app) => {
    watch(REPORT, (node) => link(app, node, IN_REPORT, `${node.dataset.labkitExercise}.py`));
    watch(TRACEBACK, (node) => link(app, node, IN_TRACEBACK, ""));
  },
};

// own: the file of lines without one
function link(app, root, pattern, own) {
  const texts = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let at = 0; walker.nextNode(); at += walker.currentNode.length) texts.push([at, walker.currentNode]);
  const found = [...root.textContent.matchAll(pattern)];
  const place = (offset) => {
    const [at, node] = texts.findLast(([begin]) => begin < offset) ?? texts[0];
    return [node, offset - at];
  };
  // from the end, so that the places of the others stay
  for (const match of found.reverse()) {
    const range = document.createRange();
    const [first, begin] = texts.findLast(([at]) => at <= match.index);
    range.setStart(begin, match.index - first);
    range.setEnd(...place(match.index + match[0].length));
    const made = document.createElement("a");
    made.className = "labkit-line";
    made.href = "#";
    made.title = "Go to this line";
    made.append(range.extractContents());
    for (const dead of made.querySelectorAll("a")) dead.replaceWith(...dead.childNodes); // JupyterLab's own attempt
    range.insertNode(made);
    made.addEventListener("click", (event) => {
      event.preventDefault();
      event.stopPropagation();
      go(app, made, match[1] ?? own, Number(match[2]));
    });
  }
}

async function go(app, origin, file, line) {
  const open = panels(app, origin);
  for (const panel of open) {
    const notebook = panel.content;
    const cells = notebook?.model?.cells ? notebook.widgets : [];
    const at = cells.findIndex((cell) => cell.model.type === "code" && holds(cell.model.sharedModel.getSource(), file));
    if (at >= 0) {
      app.shell.activateById(panel.id);
      notebook.activeCellIndex = at;
      await notebook.activeCell.ready;
      notebook.mode = "edit";
      reveal(notebook.activeCell.editor, line);
      return;
    }
  }
  const folder = (open[0]?.context?.path ?? "").split("/").slice(0, -2);
  for (const path of [[...folder, file].join("/"), `workspace/${file}`]) {
    try {
      await app.serviceManager.contents.get(path, { content: false });
    } catch {
      continue; // not there
    }
    const widget = await app.commands.execute("docmanager:open", { path, factory: "Editor" });
    await widget.context.ready;
    reveal(widget.content.editor, line);
    return;
  }
}

// is a cell with this source the module?
function holds(source, file) {
  const name = /^%%exercise\s+(\S+)/m.exec(source)?.[1];
  const module = file.replace(/\.py$/, "");
  return name !== undefined && (name === module || name.endsWith(`/${module}`) || module.endsWith(`/${name}`));
}

function reveal(editor, line) {
  const position = { line: Math.min(line, editor.lineCount) - 1, column: 0 };
  editor.setCursorPosition(position);
  editor.revealPosition(position);
  editor.focus();
}
