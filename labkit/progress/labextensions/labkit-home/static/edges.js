// What builds on what, as arrows between the cards of the map. They run in the gaps below the rows and in the margin to
// their left, so that they never cross a card or a heading.
const SVG = "http://www.w3.org/2000/svg";
const TO_LINE = 8; // from the cards to the nearest line
const BETWEEN_LINES = 4;
const ASIDE = 12; // arrows leave to the right of a card's middle and arrive to the left of it

export function drawEdges(map, facts) {
  map.querySelector("svg")?.remove();
  const frame = map.getBoundingClientRect();
  const svg = shape("svg", { width: frame.width, height: frame.height, "aria-hidden": "true" });
  const boxes = new Map();
  for (const card of map.querySelectorAll("[data-number]")) {
    const box = card.getBoundingClientRect();
    boxes.set(Number(card.dataset.number), {
      middle: box.left - frame.left + box.width / 2,
      bottom: box.bottom - frame.top,
    });
  }
  const built = facts.phases.flatMap((phase) => phase.exercises).filter((one) => one.builds_on.length > 0);
  built.forEach((one, index) => {
    const from = one.builds_on.map((number) => boxes.get(number));
    svg.append(shape("path", { d: arrow(from, boxes.get(one.number), TO_LINE + BETWEEN_LINES * (index % 4)) }));
  });
  map.append(svg);
}

// the cards that one builds on, joined in a line at that distance from them and from the left, with a single tip
function arrow(from, to, distance) {
  const end = to.middle - ASIDE;
  const tip = `M ${end - 4} ${to.bottom + 5} L ${end} ${to.bottom + 1} L ${end + 4} ${to.bottom + 5}`;
  const lines = from.map((card) => {
    const sameRow = Math.abs(card.bottom - to.bottom) < 2;
    const around = sameRow ? "" : `H ${-distance} V ${to.bottom + distance}`;
    return `M ${card.middle + ASIDE} ${card.bottom} v ${distance} ${around} H ${end} V ${to.bottom + 1}`;
  });
  return [...lines, tip].join(" ");
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
