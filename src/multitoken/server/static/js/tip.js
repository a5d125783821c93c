// A small label beside whatever has `data-tip`, for a mouse or a finger.

const GAP = 8;

export function installTip(tip) {
  const show = (event) => {
    const target = event.target.closest?.("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + GAP, innerWidth - box.width - GAP);
    const above = event.clientY - box.height - GAP;
    tip.style.left = `${Math.max(GAP, left)}px`;
    tip.style.top = `${above < GAP ? event.clientY + 2 * GAP : above}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => (tip.hidden = true), true);
}
