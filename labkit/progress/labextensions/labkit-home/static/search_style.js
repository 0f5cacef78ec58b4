// The search box, on the home and in the side bar; colours are the theme's.
export const STYLE = `
.labkit-search { color: var(--jp-content-font-color1); font-size: var(--jp-content-font-size1); line-height: 1.5; }
#labkit-search { padding: 10px 12px; overflow: auto; background: var(--jp-layout-color1); }
.labkit-page .labkit-search { margin: 14px 0; }
.labkit-search label { display: block; font-weight: 600; }
.labkit-search input { box-sizing: border-box; width: 100%; max-width: 32em; height: 32px; font-size: 1em; }
.labkit-search p { margin: 4px 0; min-height: 1.5em; font-size: 0.92em; }
.labkit-page .labkit-search p:empty { display: none; }
.labkit-search ol { list-style: none; margin: 0; padding: 0; }
.labkit-search li { margin: 0 0 10px; overflow-wrap: anywhere; }
.labkit-search li a { display: block; font-weight: 600; color: var(--jp-content-link-color); }
.labkit-search li a:hover { text-decoration: underline; }
.labkit-search a:focus-visible { outline: 2px solid var(--jp-brand-color1); outline-offset: 2px; }
.labkit-search li span { font-size: 0.92em; }
.labkit-search mark { background: none; color: inherit; font-weight: 700; }
`;
