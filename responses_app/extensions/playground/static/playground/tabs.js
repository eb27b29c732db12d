// Tabs: one is selected, arrows go from one to the next.

/** Make tabs of buttons; `chosen(tab)` hears which one was chosen by hand. */
export function tabs(buttons, chosen) {
  const select = (tab) => {
    for (const each of buttons) {
      each.setAttribute("aria-selected", String(each === tab));
      each.tabIndex = each === tab ? 0 : -1;
    }
  };
  const choose = (tab) => {
    select(tab);
    chosen(tab);
  };
  buttons.forEach((tab, place) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(place + step + buttons.length) % buttons.length];
      next.focus();
      choose(next);
    });
  });
  return { select };
}
