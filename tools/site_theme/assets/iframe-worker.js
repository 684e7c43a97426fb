// The theme searches in a worker, which browsers do not allow to pages that were opened from the disk. There a hidden
// frame does a worker's work. (The theme would fetch such a stand-in from the network; the name keeps it from that.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.postMessage = (data) => started.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
      const started = new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        inside.document.body.append(script);
      });
    }
  };
}
