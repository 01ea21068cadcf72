// What `vendor/lit.js` of the console exports: all of lit, and the directives that the console uses.
// Left out are those that the console's Content-Security-Policy forbids (`styleMap` writes `style`
// attributes) and those that turn strings into markup (`unsafeHTML`, `unsafeSVG`).
export * from "lit";
export { classMap } from "lit/directives/class-map.js";
export { guard } from "lit/directives/guard.js";
export { ifDefined } from "lit/directives/if-defined.js";
export { keyed } from "lit/directives/keyed.js";
export { live } from "lit/directives/live.js";
export { createRef, ref } from "lit/directives/ref.js";
export { repeat } from "lit/directives/repeat.js";
export { until } from "lit/directives/until.js";
