// What builds on what, as arrows between the cards of the map; they run in the gaps, never across a card.
const SVG = "http://www.w3.org/2000/svg";

export function drawEdges(map, facts) {
  map.querySelector("svg")?.remove();
  const frame = map.getBoundingClientRect();
  const svg = shape("svg", { width: frame.width, height: frame.height, "aria-hidden": "true" });
  const boxes = new Map();
  for (const card of map.querySelectorAll("[data-number]")) {
    const box = card.getBoundingClientRect();
    boxes.set(Number(card.dataset.number), {
      left: box.left - frame.left,
      middle: box.left - frame.left + box.width / 2,
      top: box.top - frame.top,
      bottom: box.bottom - frame.top,
    });
  }
  for (const one of facts.phases.flatMap((phase) => phase.exercises)) {
    one.builds_on.forEach((number, index) => svg.append(arrow(boxes.get(number), boxes.get(one.number), 4 * index)));
  }
  map.append(svg);
}

// from the lower edge of a card, along the gap below it, to the card that builds on it
function arrow(from, to, aside) {
  const below = from.bottom + 10;
  const start = `M ${from.middle} ${from.bottom} V ${below}`;
  const sameRow = Math.abs(from.top - to.top) < 2;
  const end = to.middle + aside;
  const rest = sameRow
    ? `H ${end} V ${to.bottom + 1}`
    : `H ${to.left - 8 - aside} V ${to.top - 10} H ${end} V ${to.top - 1}`;
  const tip = sameRow
    ? `M ${end - 4} ${to.bottom + 6} L ${end} ${to.bottom + 1} L ${end + 4} ${to.bottom + 6}`
    : `M ${end - 4} ${to.top - 6} L ${end} ${to.top - 1} L ${end + 4} ${to.top - 6}`;
  return shape("path", { d: `${start} ${rest} ${tip}` });
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
