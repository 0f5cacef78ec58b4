/* The page of `labkit dashboard`: asks its server for the data again and again. */

import { Dashboard } from "./dashboard.js";

const dashboard = new Dashboard(document.getElementById("dashboard"));
let shown;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && dashboard.show(shown));
for (;;) {
    let wait = 1000; // milliseconds
    try {
        shown = await (await fetch("data")).json();
        dashboard.show(shown);
        if (shown.reading) wait = 0;
    } catch {
        dashboard.lost();
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
}
