// Numbers, sizes and times as text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** 12,345; large numbers as 1.2M. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 100_000 ? whole.format(value) : compact.format(value);
}

/** 12,345,678 in full. */
export function exact(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** A number with few digits: 0.12, 3.4, 120. */
export function decimal(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 10) return String(Number(value.toPrecision(2)));
  return count(Math.round(value));
}

/** Bytes: 12 kB, 3.4 MB. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let rest = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(rest) < 999.5 || unit === "TB") {
      return `${rest < 10 && unit !== "B" ? rest.toFixed(1) : Math.round(rest)} ${unit}`;
    }
    rest /= 1000;
  }
}

/** A duration in seconds: 0.4 ms, 12 ms, 3.2 s, 4 min, 2 h 5 min, 3 d. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return minutes < 10 && Math.floor(seconds % 60) ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 10 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** How long ago a time in seconds since 1970 was. */
export function ago(at, now = Date.now() / 1000) {
  if (at === null || at === undefined) return "–";
  const seconds = Math.max(now - at, 0);
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `${duration(Math.floor(seconds))} ago`;
}

/** The time of day, with the date unless it is today. */
export function time(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const clock = date.toLocaleTimeString("en-GB");
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock : `${day(date)} ${clock}`;
}

function day(date) {
  return `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;
}

/** 1 file, 2 files. */
export function plural(number, noun, more = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : more}`;
}

/** A share from 0 to 1 in percent. */
export function percent(share) {
  return `${Math.round(share * 100)} %`;
}
