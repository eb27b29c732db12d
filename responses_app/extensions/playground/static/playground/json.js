// Reads JSON (RFC 8259), and says where a text is none: browsers word that differently, and some name no place.

const DEEPEST = 200; // lists and objects in each other: the server takes fewer
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/uy;
const WORD = /[A-Za-z_$][\w$]*/uy;
const ESCAPE = /["\\/bfnrt]|u[\dA-Fa-f]{4}/uy;

/** Return what is wrong with a text as JSON: {message, at, line, column}; null for JSON. */
export function problemOf(text) {
  try {
    new Reader(text).whole();
    return null;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    const before = text.slice(0, problem.at).split("\n");
    return { message: problem.message, at: problem.at, line: before.length, column: before.at(-1).length + 1 };
  }
}

class Problem extends Error {
  constructor(message, at) {
    super(message);
    this.at = at;
  }
}

/** Goes through a text once. */
class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  whole() {
    this.#skip();
    if (this.at === this.text.length) this.#wrong("Nothing is written here yet.");
    this.#value(0);
    this.#skip();
    if (this.at < this.text.length) this.#wrong("Nothing may follow the value.");
  }

  #wrong(message, at = this.at) {
    throw new Problem(message, at);
  }

  #skip() {
    while (" \t\n\r".includes(this.text[this.at] ?? "x")) this.at += 1;
  }

  #match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.text)?.[0] ?? "";
  }

  #value(depth) {
    if (depth > DEEPEST) this.#wrong(`Lists and objects are nested more than ${DEEPEST} deep.`);
    const next = this.text[this.at];
    if (next === "{") this.#object(depth);
    else if (next === "[") this.#list(depth);
    else if (next === '"') this.#string();
    else this.#plain(next);
  }

  #plain(next) {
    if (next === undefined) this.#wrong("The text ends, and a value is missing.");
    if ("'‘’“”".includes(next)) this.#wrong('Texts stand in double quotes: "…".');
    const number = this.#match(NUMBER);
    const word = this.#match(WORD);
    if (number) {
      this.at += number.length;
      if (/[\w.+]/u.test(this.text[this.at] ?? "")) this.#wrong("This is not a number of JSON.", this.at - number.length);
    } else if (["true", "false", "null"].includes(word)) {
      this.at += word.length;
    } else if (word) {
      this.#wrong(`${word.slice(0, 40)} is not a value. Texts stand in double quotes; others are numbers, true, false and null.`);
    } else if (next === "/") {
      this.#wrong("JSON has no comments.");
    } else {
      this.#wrong("A value is missing.");
    }
  }

  #list(depth) {
    this.#parts("]", () => this.#value(depth + 1));
  }

  #object(depth) {
    const names = new Set();
    this.#parts("}", () => {
      if (this.text[this.at] !== '"') this.#wrong("A name in double quotes is missing.");
      const from = this.at;
      const name = this.#string();
      if (names.has(name)) this.#wrong(`The name ${name.slice(0, 80)} stands in this object twice.`, from);
      names.add(name);
      this.#skip();
      if (this.text[this.at] !== ":") this.#wrong("A colon is missing behind the name.");
      this.at += 1;
      this.#skip();
      this.#value(depth + 1);
    });
  }

  /** Read what stands between brackets, with commas between. */
  #parts(end, part) {
    this.at += 1;
    this.#skip();
    if (this.text[this.at] === end) return (this.at += 1);
    for (;;) {
      part();
      this.#skip();
      const comma = this.at;
      const next = this.text[this.at];
      if (next === end) return (this.at += 1);
      if (next === undefined) this.#wrong(`The text ends, and ${end} is missing.`);
      if (next !== ",") this.#wrong(`A comma or ${end} is missing.`);
      this.at += 1;
      this.#skip();
      if (this.text[this.at] === end) this.#wrong(`Nothing follows this comma: remove it before ${end}.`, comma);
    }
  }

  /** Read a string; return it as it is written, with its quotes. */
  #string() {
    const from = this.at;
    for (this.at += 1; ; this.at += 1) {
      const next = this.text[this.at];
      if (next === undefined) this.#wrong("This text has no double quote at its end.", from);
      if (next === '"') break;
      if (next < " ") this.#wrong(next === "\n" ? "This text has no double quote at its end. (A new line in a text is \\n.)" : "Control characters are written as \\u00….", next === "\n" ? from : this.at);
      if (next === "\\") {
        this.at += 1;
        const escape = this.#match(ESCAPE);
        if (!escape) this.#wrong('This backslash begins nothing that JSON knows: write \\\\ for a backslash, \\" for a quote.', this.at - 1);
        this.at += escape.length - 1;
      }
    }
    this.at += 1;
    return this.text.slice(from, this.at);
  }
}
