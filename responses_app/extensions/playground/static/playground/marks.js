// Marks of citations within a text of Markdown.
//
// A mark is put into the text before it is read as Markdown. Its first and last characters count as punctuation, and end
// a bare address; those within are control characters (U+0096, U+0097), which are taken out of what models write.

/** A mark and its number. */
export const MARKS = /｜\u0096(\d+)\u0097｜/gu;

/** Return the mark of a number. */
export const markOf = (number) => `｜\u0096${number}\u0097｜`;

/** Return a text without what only marks may have. */
export const plain = (text) => text.replace(/[\u0096\u0097]/gu, "\uFFFD");

/** Return a text without marks. */
export const withoutMarks = (text) => text.replace(MARKS, "");

/** Return what the marks of a text look like. */
export const marksIn = (text) => [...text.matchAll(MARKS)].map(([, number]) => `<sup class="cite">${number}</sup>`).join("");
