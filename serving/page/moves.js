// Structured moves as the service reads them: at most one `[kind argument ...]` in a message, else none counts.

const BRACKETED = /\[([^[\]]*)\]/g;

export function parse(text) {
  const found = [...text.matchAll(BRACKETED)];
  const words = text.replace(BRACKETED, " ").split(/\s+/).filter(Boolean).join(" ");
  const stray = words.includes("[") || words.includes("]");
  if (found.length !== 1 || stray) return { words, move: null, attempted: found.length > 0 || stray };
  const [kind, ...args] = found[0][1].split(/\s+/).filter(Boolean);
  if (!/^[a-z]+$/.test(kind ?? "")) return { words, move: null, attempted: true };
  return { words, move: { kind, arguments: args }, attempted: true };
}

// A message made by a button. Brackets in the words would make a second move, and two moves count as none.
export function write(words, kind, ...args) {
  const plain = words.replaceAll("[", "(").replaceAll("]", ")").trim();
  return `${plain} [${[kind, ...args].join(" ")}]`.trim();
}

// What may be shown of a reply that is still being written: a move only once it is whole.
export const preview = (text) => text.split("[", 1)[0].trimEnd();
