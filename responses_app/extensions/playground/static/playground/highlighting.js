// A worker that colours code, so that no pattern of a language holds up the page. It answers with lengths and classes,
// never with text: what is shown is the page's own copy of the code.

import highlighter from "../vendor/highlight.js-11.12.0/highlight.min.js";

const MARKUP = /<span class="([^"]*)">|<\/span>|&(?:amp|lt|gt|quot|#x27);|[^<&]+/gu; // all that the highlighter writes

onmessage = ({ data: { language, parts } }) => {
  postMessage("begun");
  if (!highlighter.getLanguage(language)) return postMessage(null);
  const { value } = highlighter.highlight(parts.join(""), { language, ignoreIllegals: true });
  return postMessage(cut(runs(value), parts));
};

/** Return the code as [length, class] of each run. */
function runs(markup) {
  const found = [];
  const open = [];
  for (const [all, opened] of markup.matchAll(MARKUP)) {
    if (opened !== undefined) open.push(opened.split(" ")[0]);
    else if (all === "</span>") open.pop();
    else {
      const length = all.startsWith("&") ? 1 : all.length;
      const kind = open.at(-1) ?? "";
      if (found.length && found.at(-1)[1] === kind) found.at(-1)[0] += length;
      else found.push([length, kind]);
    }
  }
  return found;
}

/** Return the runs of each part, as text that can be compared. */
function cut(found, parts) {
  let next = 0;
  return parts.map((part) => {
    const made = [];
    for (let left = part.length; left > 0 && next < found.length; ) {
      const length = Math.min(left, found[next][0]);
      made.push(`${length} ${found[next][1]}`);
      left -= length;
      found[next][0] -= length;
      if (!found[next][0]) next += 1;
    }
    return made.join(",");
  });
}
