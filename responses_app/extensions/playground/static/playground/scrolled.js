// Where a lane is scrolled to, in words that hold at another width: a turn, and how far into it.

/** Return the place; null where the lane is not seen. */
export function placeOf({ transcript, follows }) {
  const { top, height } = transcript.getBoundingClientRect();
  if (!height) return null;
  const turns = follows ? [] : [...transcript.querySelectorAll("[data-response]")];
  const turn = turns.find((each) => each.getBoundingClientRect().bottom > top);
  return turn ? { turn: turn.dataset.response, by: Math.round(top - turn.getBoundingClientRect().top) } : { end: true };
}

/** Scroll a lane to a place; to the end, where there is none or its turn is not shown. */
export function goTo(lane, place) {
  const { transcript } = lane;
  const turn = place?.turn && transcript.querySelector(`[data-response="${CSS.escape(place.turn)}"]`);
  lane.follows = !turn;
  requestAnimationFrame(() => {
    if (turn) transcript.scrollTop += turn.getBoundingClientRect().top - transcript.getBoundingClientRect().top + place.by;
    else lane.scroll();
  });
}
