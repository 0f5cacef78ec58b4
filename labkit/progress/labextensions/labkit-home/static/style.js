// Colours are the theme's; states differ by word and by the width of the bar, not by colour alone.
export const STYLE = `
.labkit-home {
  overflow: auto;
  background: var(--jp-layout-color1);
  color: var(--jp-content-font-color1);
  font-family: var(--jp-content-font-family);
  font-size: var(--jp-content-font-size1);
  line-height: 1.5;
}
.labkit-home:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: -2px; }
.labkit-page { max-width: 960px; margin: 0 auto; padding: 24px 28px 40px; }
.labkit-page h1 { font-size: 1.7em; font-weight: 600; margin: 0; }
.labkit-page h2 { font-size: 1.15em; font-weight: 600; margin: 28px 0 10px; }
.labkit-page a { color: var(--jp-content-link-color); }
.labkit-page code { font-family: var(--jp-code-font-family); font-size: 0.92em; background: var(--jp-layout-color2); padding: 1px 3px; }
.labkit-guides a { text-decoration: underline; }
.labkit-summary { margin: 2px 0 14px; }
.labkit-aloud { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; margin: 0; }
.labkit-page a.labkit-continue {
  display: inline-block; margin-right: 6px; padding: 8px 16px; border-radius: 4px; font-weight: 600; text-decoration: none;
  background: #0b5cad; color: #fff;
}
.labkit-page a.labkit-continue:hover { background: #094a8b; }
.labkit-page a:focus-visible, .labkit-page summary:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: 2px; }
.labkit-tour { margin: 16px 0; padding: 10px 16px; border: 1px solid var(--jp-border-color1); border-radius: 4px; }
.labkit-tour summary { cursor: pointer; font-weight: 600; }
.labkit-tour ol { margin: 8px 0; padding-left: 22px; }
.labkit-map { position: relative; }
.labkit-map > svg { position: absolute; inset: 0; pointer-events: none; overflow: visible; }
.labkit-map path { fill: none; stroke: var(--jp-ui-font-color2); stroke-width: 1.5; }
.labkit-map ol {
  list-style: none; margin: 0; padding: 0 0 12px; display: grid; gap: 22px 16px;
  grid-template-columns: repeat(auto-fill, minmax(190px, 1fr));
}
.labkit-card {
  display: flex; flex-direction: column; gap: 3px; padding: 10px 12px; border-radius: 4px;
  border: 1px solid var(--jp-border-color1); background: var(--jp-layout-color1);
}
.labkit-card > a, .labkit-card > strong { font-weight: 600; }
.labkit-course { margin: 0 0 10px; }
.labkit-course .labkit-fetch { margin-left: 6px; }
.labkit-marks a { text-decoration: underline; }
.labkit-facts, .labkit-state { font-size: 0.92em; }
.labkit-points { margin-top: auto; }
.labkit-bar { height: 5px; border-radius: 3px; background: var(--jp-layout-color3); overflow: hidden; }
.labkit-bar > span { display: block; height: 100%; background: #0072b2; }
.labkit-complete .labkit-bar > span { background: #009e73; }
.labkit-next { border: 2px solid var(--jp-brand-color1); padding: 9px 11px; }
`;
