"use strict";

// Exact arithmetic. A number is a fraction [numerator, denominator] of BigInts in lowest terms, the denominator
// positive, so that nothing is rounded before it is shown. Division by zero throws, and its figure has no value.
const common = (a, b) => { while (b) [a, b] = [b, a % b]; return a < 0n ? -a : a; };
const num = (top, bottom) => {
  if (bottom === 0n) throw new RangeError("division by zero");
  const factor = common(top, bottom) * (bottom < 0n ? -1n : 1n);
  return [top / factor, bottom / factor];
};
const less = (a, b) => a[0] * b[1] < b[0] * a[1];
const add = (...terms) => terms.reduce((a, b) => num(a[0] * b[1] + b[0] * a[1], a[1] * b[1]));
const mul = (...factors) => factors.reduce((a, b) => num(a[0] * b[0], a[1] * b[1]));
const pow = (base, n) => n < 0 ? num(base[1] ** BigInt(-n), base[0] ** BigInt(-n))
  : num(base[0] ** BigInt(n), base[1] ** BigInt(n));
const max = (...values) => values.reduce((a, b) => less(a, b) ? b : a);
const min = (...values) => values.reduce((a, b) => less(b, a) ? b : a);
const floor = value => [value[0] / value[1] - (value[0] < 0n && value[0] % value[1] ? 1n : 0n), 1n];
const ceiling = value => { const [low] = floor([-value[0], value[1]]); return [-low, 1n]; };

// Sizes as people write them: 8, 70000000000, 1/2, 0.5. Undefined where a text is none.
const read = text => {
  const [, whole, part, under] = /^\s*(\d+)(?:\.(\d+)|\/(\d+))?\s*$/.exec(text) || [];
  if (whole === undefined || (under !== undefined && BigInt(under) === 0n)) return undefined;
  return part ? num(BigInt(whole + part), 10n ** BigInt(part.length)) : num(BigInt(whole), BigInt(under ?? 1));
};
const exact = value => value[1] === 1n ? `${value[0]}` : `${value[0]}/${value[1]}`;

// Values for people: three decimals, rounded half up, in the largest unit in which the largest value is at least 1.
const SCALES = {
  bytes: [["PB", 10n ** 15n], ["TB", 10n ** 12n], ["GB", 10n ** 9n], ["MB", 10n ** 6n], ["kB", 10n ** 3n], ["B", 1n]],
  1: [["", 1n]],
};
const thousands = whole => `${whole}`.replace(/\B(?=(\d{3})+$)/g, ",");
const scaleFor = (unit, largest) => SCALES[unit].find(([, by]) => !less(largest, [by, 1n])) || SCALES[unit].at(-1);
const scaled = (value, [unit, by]) => {
  const within = num(value[0], value[1] * by);
  const [thousandths] = floor(add(mul(within, [1000n, 1n]), [1n, 2n]));
  const digits = `${thousandths % 1000n}`.padStart(3, "0");
  const text = within[1] === 1n && (by === 1n || within[0] === 0n) ? thousands(within[0])
    : thousandths === 0n ? "<0.001" : `${thousands(thousandths / 1000n)}.${digits}`;
  return unit ? `${text} ${unit}` : text;
};
const share = (value, of) => of[0] ? Number(mul(value, pow(of, -1), [10n ** 6n, 1n]).reduce((a, b) => a / b)) / 1e4 : 0;

// One strategy at the sizes of the page: what it fixes itself comes before the sliders, an axis of data takes the
// devices of axes that others have, and symbols that are defined in other sizes take the value that follows.
const sizesOf = (strategy, chosen) => {
  const sizes = Object.assign(Object.create(null), chosen, strategy.fixed);
  for (const [axis, others] of Object.entries(strategy.spread)) {
    if ([axis, ...others].every(name => chosen[name])) sizes[axis] = mul(chosen[axis], ...others.map(name => chosen[name]));
  }
  for (const [name, value] of Object.entries(strategy.defined)) sizes[name] ??= value(sizes);
  return sizes;
};
const valueOf = (figure, sizes) => {
  try { return figure ? figure(sizes) : undefined; } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
};

// The devices of a strategy's mesh; undefined where a size is none.
const devicesOf = (strategy, sizes) => strategy.axes.every(axis => sizes[axis])
  ? strategy.axes.reduce((n, axis) => mul(n, sizes[axis]), [1n, 1n]) : undefined;
const GIGA = [10n ** 9n, 1n];

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function show(strategies, chosen, memory) {
  const values = strategies.map(strategy => {
    const sizes = sizesOf(strategy, chosen);
    return Object.fromEntries(Object.entries(strategy.figures).map(([name, f]) => [name, valueOf(f, sizes)]));
  });
  const largest = room => values.flatMap(v => Object.entries(v)).filter(([name, v]) => v && name.startsWith(room))
    .reduce((most, [, v]) => max(most, v), [0n, 1n]);
  const limit = memory && mul(memory, GIGA);
  const most = { memory: limit ? max(largest("memory."), limit) : largest("memory."), sent: largest("sent."), schedule: [0n, 1n] };
  for (const place of all("[data-figure]")) {
    const [strategy, name] = [place.closest("[data-strategy]").dataset.strategy, place.dataset.figure];
    const value = values[strategy][name], room = name.split(".")[0];
    place.dataset.exact = value ? exact(value) : "";
    const text = value ? scaled(value, scaleFor(room === "schedule" ? "1" : "bytes", most[room])) : "—";
    if (place.dataset.as === "part") place.style.width = `${value ? share(value, most[room]) : 0}%`;
    else if (place.dataset.as === "mark") place.style.left = `${value ? share(value, most[room]) : 0}%`;
    else place.textContent = text;
    place.title = (place.dataset.told ? `${place.dataset.told}: ` : "") + (place.dataset.as ? text : place.dataset.exact);
  }
  for (const place of all("[data-limit]")) {
    const peak = values[place.closest("[data-strategy]").dataset.strategy]["memory.peak"];
    place.hidden = !limit;
    if (limit) place.style.left = `${share(limit, most.memory)}%`;
    place.closest(".row").classList.toggle("over", Boolean(limit && peak && less(limit, peak)));
  }
  const counts = strategies.map(strategy => devicesOf(strategy, sizesOf(strategy, chosen)));
  for (const place of all("[data-devices]")) {
    const count = counts[place.closest("[data-strategy]").dataset.strategy];
    place.textContent = count ? `${thousands(count[0])} device${count[0] === 1n ? "" : "s"}` : "";
  }
  for (const place of all("[data-meshes]")) place.hidden = new Set(counts.map(count => count && exact(count))).size < 2;
  for (const place of all("[data-drawings]")) {
    const sizes = sizesOf(strategies[place.closest("[data-strategy]").dataset.strategy], chosen);
    const drawings = all("[data-drawn]", place);
    const fits = drawing => Object.entries(JSON.parse(drawing.dataset.drawn))
      .every(([axis, n]) => !sizes[axis] || exact(sizes[axis]) === `${n}`);
    const found = drawings.find(fits);
    for (const drawing of drawings) drawing.hidden = drawing !== (found || drawings[0]);
    for (const note of all("[data-elsewhere]", place)) note.hidden = Boolean(found);
  }
  for (const place of all("[data-broken]")) {
    const strategy = strategies[place.dataset.broken], sizes = sizesOf(strategy, chosen);
    const broken = strategy.conditions.filter(([, holds]) => !holds(sizes)).map(([text]) => text);
    place.textContent = broken.length ? `At these sizes the figures do not apply: ${broken.join("; ")}.` : "";
    place.hidden = !broken.length;
  }
}

function start(strategies, limits) {
  const chosen = Object.create(null), fields = Object.create(null);
  const asked = new URLSearchParams(location.hash.slice(1)), given = asked.get("memory") || "";
  const memory = document.getElementById("device-memory");
  if (read(given)) memory.value = given;
  let waiting;
  const remember = () => {  // once a slider rests: browsers slow down pages that change their address too often
    if (window.parent !== window) return;  // in a frame of srcdoc a hash leads to the page around it
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const said = new URLSearchParams(Object.entries(fields).map(([name, field]) => [name, field.value]));
      if (memory.value) said.set("memory", memory.value);
      location.replace(`#${said}`);  // history.replaceState is forbidden to a page that was opened as a file
    }, 300);
  };
  const shown = () => show(strategies, chosen, read(memory.value));
  memory.addEventListener("input", () => {
    const valid = !memory.value || (read(memory.value) && read(memory.value)[0] > 0n);
    memory.setAttribute("aria-invalid", !valid);
    if (valid) { shown(); remember(); }
  });
  for (const row of all("[data-size]")) {
    const name = row.dataset.size, [slider, field] = [row.querySelector("[type=range]"), row.querySelector("[type=text]")];
    const { stops, least, whole } = limits[name];
    const nearest = value => stops.reduce((k, stop, j) => less(value, read(stop)) ? k : j, 0);
    const allowed = value => value && value[0] > 0n && !less(value, read(least)) && (!whole || value[1] === 1n);
    const follow = value => {
      chosen[name] = value;
      slider.setAttribute("aria-valuetext", `${name} = ${field.value}`);
    };
    fields[name] = field;
    if (allowed(read(asked.get(name) || ""))) {
      field.value = asked.get(name);
      slider.value = nearest(read(field.value));
    }
    follow(read(field.value));
    slider.addEventListener("input", () => {
      field.value = stops[slider.value];
      field.dispatchEvent(new Event("input"));
    });
    field.addEventListener("input", () => {
      const value = read(field.value);
      const valid = Boolean(allowed(value));
      field.setAttribute("aria-invalid", !valid);
      if (!valid) return;
      if (document.activeElement !== slider) slider.value = nearest(value);
      follow(value);
      shown();
      remember();
    });
  }
  shown();
}
