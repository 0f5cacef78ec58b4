// The entry that JupyterLab loads: a module-federation container, written by hand so that nothing has to be built.
var _JUPYTERLAB;
(() => {
  const here = document.currentScript.src;
  let shared;

  // a module that JupyterLab shares with its extensions
  const load = async (name) => {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  };

  const container = {
    init: (scope) => {
      shared = scope;
    },
    get: async () => {
      const part = (name) => import(new URL(name, here).href);
      const [{ home }, { lines }, { stored }] = await Promise.all(["home.js", "lines.js", "stored.js"].map(part));
      const first = home(await load("@lumino/widgets"), await load("@jupyterlab/docregistry"));
      return () => ({ default: [first, lines, stored], __esModule: true });
    },
  };
  (_JUPYTERLAB = typeof _JUPYTERLAB === "undefined" ? {} : _JUPYTERLAB)["labkit-home"] = container;
})();
