/** Starts the console. The sheet of colours that the user has chosen is set before anything shows. */

import { applyTheme } from "./core/identity.js";
import "./shell.js";

applyTheme();
