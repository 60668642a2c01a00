// The stream of one page's document: server-sent events, and requests while there is no stream.

import { get, query } from "./api.js";

const POLL_MS = 5000;
const RETRY_MS = 2000;

/** Follows one document at a time, while the page is visible. */
export class Live {
  /** onDocument(document) is called with each version; onState("live" | "polling" | "lost"). */
  constructor(onDocument, onServer, onState) {
    this.onDocument = onDocument;
    this.onServer = onServer;
    this.onState = onState;
    this.parameters = null;
    this.source = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  /** Follows the document of a topic from now on. */
  follow(topic, parameters) {
    this.parameters = { topic, ...parameters };
    this.start();
  }

  stop() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
  }

  start() {
    this.stop();
    if (!this.parameters) return;
    const source = new EventSource(`/api/live${query(this.parameters)}`);
    this.source = source;
    source.addEventListener("document", (event) => {
      if (this.source !== source) return;
      this.onState("live");
      this.onDocument(JSON.parse(event.data));
    });
    source.addEventListener("server", (event) => this.source === source && this.onServer(JSON.parse(event.data)));
    source.addEventListener("failure", (event) => {
      if (this.source !== source) return;
      this.onState("live");
      this.onDocument(null, JSON.parse(event.data));
    });
    source.onerror = () => {
      if (this.source !== source) return;
      // The browser reconnects by itself unless the server refused the stream.
      if (source.readyState === EventSource.CLOSED) this.poll();
      else this.onState("lost");
    };
  }

  /** There are too many streams, or the login has ended: asks now and then, and tries again. */
  async poll() {
    this.stop();
    const { topic, ...parameters } = this.parameters;
    try {
      this.onDocument(await get(`/api/${topic}`, parameters));
      this.onServer(await get("/api/server"));
      this.onState("polling");
      this.timer = setTimeout(() => this.poll(), POLL_MS);
    } catch (failure) {
      this.onState("lost");
      this.timer = setTimeout(() => this.start(), RETRY_MS);
    }
  }
}
