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
      const parts = ["home.js", "search.js", "guides.js", "lines.js", "stored.js", "place.js", "elapsed.js"];
      const [{ home }, { search }, { guides }, { lines }, { stored }, { place }, { elapsed }] = await Promise.all(
        parts.map(part),
      );
      const widgets = await load("@lumino/widgets");
      const services = await load("@jupyterlab/services");
      const first = home(widgets, await load("@jupyterlab/docregistry"), services);
      const second = search(widgets, await load("@jupyterlab/ui-components"));
      const others = [guides(widgets), lines, stored, place(services), elapsed];
      return () => ({ default: [first, second, ...others], __esModule: true });
    },
  };
  (_JUPYTERLAB = typeof _JUPYTERLAB === "undefined" ? {} : _JUPYTERLAB)["labkit-home"] = container;
})();
