// What every page of a site does: a picture plays once it is scrolled to, and a term says what it means.
//
// A page that was opened from a disk may load scripts, but no data. So what a picture shows is a script, too: it
// gives labkit.take its packed text.

const arrivals = new Map(); // by name, the promise of what its file holds
const packed = {};
window.labkit = { take: (name, text) => { packed[name] = text; } };

function load(name) {
  if (!arrivals.has(name)) {
    arrivals.set(name, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `pictures/${name}.js`;
      script.onload = () => resolve(unpack(packed[name]));
      script.onerror = () => reject(new Error(`there is no ${script.src}`));
      document.head.append(script);
    }));
  }
  return arrivals.get(name);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

async function play(root) {
  const name = root.className.match(/\bpicture-([0-9a-f]{12})\b/)?.[1];
  try {
    const content = await load(name);
    const { library } = content;
    const orders = typeof library?.orders === "string" ? await load(library.orders) : library?.orders;
    openFile(root, { ...content, library: library && { ...library, orders } });
  } catch (error) {
    root.append(Object.assign(document.createElement("p"), { className: "note", textContent: `This picture does not play: ${error.message}.` }));
  }
}

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    play(target);
  }
}, { rootMargin: "400px" });
for (const root of document.querySelectorAll(".playing")) observer.observe(root);

// --- terms --------------------------------------------------------------------------------------

// The sentence of a term stands beside it while it is pointed at, or has the focus.
const bubble = Object.assign(document.createElement("div"), { className: "meaning", id: "meaning", role: "tooltip", hidden: true });
document.body.append(bubble);

function explainTerm({ currentTarget: term }) {
  bubble.textContent = term.dataset.meaning;
  bubble.hidden = false;
  const { left, bottom } = term.getBoundingClientRect();
  const most = document.documentElement.clientWidth - bubble.offsetWidth - 8;
  bubble.style.left = `${scrollX + Math.max(8, Math.min(left, most))}px`;
  bubble.style.top = `${scrollY + bottom + 4}px`;
}

function endTerm() { bubble.hidden = true; }

for (const term of document.querySelectorAll('a[href^="glossary.html#"][title]')) {
  term.dataset.meaning = term.title;
  term.removeAttribute("title");
  term.setAttribute("aria-describedby", bubble.id);
  for (const event of ["mouseenter", "focus"]) term.addEventListener(event, explainTerm);
  for (const event of ["mouseleave", "blur"]) term.addEventListener(event, endTerm);
}
document.addEventListener("keydown", ({ key }) => { if (key === "Escape") endTerm(); });

// --- what is wider than the page ----------------------------------------------------------------

// Arrow keys scroll it.
function letScrollAll() {
  for (const each of document.querySelectorAll(".output_area, .text_cell_render, .formula-block")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}
letScrollAll();
window.addEventListener("resize", letScrollAll);
