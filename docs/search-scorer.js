// How the search orders what it finds: Sphinx's own points, and half as many again for pages that say how to do something.
var Scorer = {
  score: ([page, , , , points]) => (page.startsWith("how-to/") ? points * 1.5 : points),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
