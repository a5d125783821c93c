// How often a forward committed one token, two, three, ...

const FEWEST_BARS = 6;

/** Draw `counts` (size -> number of forwards) into `host`. */
export function drawHistogram(host, counts) {
  const longest = Math.max(FEWEST_BARS, ...counts.keys());
  const highest = Math.max(1, ...counts.values());
  while (host.children.length > longest) host.lastElementChild.remove();
  while (host.children.length < longest) host.append(newBar(host.children.length + 1));
  [...host.children].forEach((bar, index) => {
    const count = counts.get(index + 1) ?? 0;
    bar.classList.toggle("none", count === 0);
    bar.style.setProperty("--share", count / highest);
    bar.firstElementChild.textContent = count || "";
  });
  const told = [...counts].sort(([a], [b]) => a - b).map(([size, count]) => `${count} of ${size}`);
  host.setAttribute("aria-label", told.length ? `Forwards by tokens: ${told.join(", ")}` : "Nothing yet");
}

function newBar(size) {
  const bar = document.createElement("div");
  bar.className = "bar";
  const label = document.createElement("b");
  label.textContent = size;
  bar.append(document.createElement("span"), document.createElement("i"), label);
  return bar;
}
