// The files that code has written, below the call that ran it: their names, their sizes, and a way to have them.

import { fileName } from "./citations.js";
import { door } from "./door.js";
import { bytes, h } from "./dom.js";

const LISTED = 100; // files of a container that are asked for, the newest
const CITATION = "container_file_citation";

/**
 * Return the files that the code of a response has written, to be shown below its last call; null below others, and where
 * there are none. Without a message that cites them, because it was interrupted, they are those of the whole container.
 */
export function writtenFiles(item, output) {
  const id = item?.container_id;
  const calls = output.filter((each) => each?.type === "code_interpreter_call" && each.container_id === id);
  if (!id || calls.at(-1)?.id !== item.id) return null;
  const messages = output.filter((each) => each?.type === "message");
  const cited = messages.flatMap(({ content }) => content.flatMap(({ annotations }) => annotations ?? [])).filter((each) => each.type === CITATION && each.container_id === id);
  if (!cited.length && messages.length) return null;
  const files = new Map(cited.map(({ file_id, filename }) => [file_id, filename]));
  const list = h("ul", {}, ...[...files].map(([file, name]) => row(id, file, name)));
  const element = h("section", { class: "written", "aria-label": "Files that the code wrote", hidden: !files.size }, h("p", { class: "head" }, "Files"), list);
  fill(element, list, id, files);
  return element;
}

/** Ask the container how large they are, and whether they are still there. */
async function fill(element, list, container, files) {
  try {
    const { data } = await door.ask(`/v1/containers/${encodeURIComponent(container)}/files?limit=${LISTED}`);
    const known = new Map(data.map((file) => [file.id, file]));
    const shown = files.size ? [...files].map(([id, name]) => [id, name, known.get(id)]) : data.filter(({ source }) => source === "assistant").map((file) => [file.id, file.path.split("/").at(-1), file]);
    const isWhole = data.length < LISTED; // of more, those that are missing here may be there
    list.replaceChildren(...shown.map(([id, name, file]) => row(container, id, name, file ? bytes(file.bytes) : isWhole ? "removed or written anew since" : "")));
    element.hidden = !shown.length;
  } catch (error) {
    if (!files.size && error.status === 404) return;
    element.hidden = false;
    if (error.status === 404) for (const button of list.querySelectorAll("button")) button.remove();
    element.append(h("p", { class: "hint" }, error.status === 404 ? "The container has expired, and its files with it. Run the code again to have them." : error.message));
  }
}

function row(container, id, filename, told = "") {
  const name = fileName(filename);
  const path = `/v1/containers/${encodeURIComponent(container)}/files/${encodeURIComponent(id)}/content`;
  const size = h("span", { class: "size" }, told);
  const fail = ({ status, message }) => (size.textContent = status === 404 ? "is gone: its container has expired, or it was removed" : message);
  const download = () => door.download(path, name).catch(fail);
  const button = h("button", { type: "button", class: "quiet", "aria-label": `Download ${name}`, on: { click: download } }, "Download");
  return h("li", {}, h("code", {}, name), size, button);
}
