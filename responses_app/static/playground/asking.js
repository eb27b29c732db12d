// What the server says of a part of a request, without running it: its count of tokens refuses what a create refuses.

/** Return what is wrong with `part` of a request as the server says it, "" for nothing. Throws where it cannot say. */
export async function wrongOf(door, part, signal) {
  try {
    await door.ask("/v1/responses/input_tokens", { method: "POST", json: { input: "x", ...part }, signal });
    return "";
  } catch (error) {
    if (error.status !== 400) throw error;
    return error.message;
  }
}
