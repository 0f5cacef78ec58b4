// Acts once on each element that appears on the page and fits a selector.
export function watch(selector, act) {
  const seen = new WeakSet();
  let waiting = false;
  const look = () => {
    waiting = false;
    for (const node of document.querySelectorAll(selector)) {
      if (!seen.has(node)) {
        seen.add(node);
        act(node);
      }
    }
  };
  new MutationObserver(() => {
    if (!waiting) requestAnimationFrame(look);
    waiting = true;
  }).observe(document.body, { childList: true, subtree: true });
}

// The notebooks and files that are open, with the one around `node` first.
export function panels(app, node) {
  const open = [...app.shell.widgets("main")];
  return open.sort((a, b) => b.node.contains(node) - a.node.contains(node));
}
