/* The page of `labkit dashboard`: asks its server for the data again and again. */

import { Dashboard } from "./dashboard.js";

const dashboard = new Dashboard(document.getElementById("dashboard"));
for (;;) {
    let wait = 1000; // milliseconds
    try {
        const data = await (await fetch("data")).json();
        dashboard.show(data);
        if (data.reading) wait = 0;
    } catch {
        dashboard.lost();
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
}
