// What `vendor/codemirror.js` of the console exports. What is not named here, and what nothing named
// here needs, is not in the file.
export {
  Annotation,
  ChangeSet,
  Compartment,
  EditorSelection,
  EditorState,
  Facet,
  Prec,
  RangeSetBuilder,
  StateEffect,
  StateField,
  Text,
  Transaction,
} from "@codemirror/state";
export {
  Decoration,
  EditorView,
  GutterMarker,
  ViewPlugin,
  WidgetType,
  drawSelection,
  dropCursor,
  gutter,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  hoverTooltip,
  keymap,
  lineNumbers,
  placeholder,
  showPanel,
  showTooltip,
  tooltips,
} from "@codemirror/view";
export {
  defaultKeymap,
  history,
  historyKeymap,
  indentLess,
  indentMore,
  indentWithTab,
  redo,
  toggleComment,
  undo,
} from "@codemirror/commands";
export {
  HighlightStyle,
  LanguageSupport,
  StreamLanguage,
  bracketMatching,
  codeFolding,
  ensureSyntaxTree,
  foldAll,
  foldGutter,
  foldKeymap,
  indentOnInput,
  indentUnit,
  syntaxHighlighting,
  syntaxTree,
  unfoldAll,
} from "@codemirror/language";
export {
  forEachDiagnostic,
  forceLinting,
  lintGutter,
  lintKeymap,
  linter,
  nextDiagnostic,
  openLintPanel,
  previousDiagnostic,
  setDiagnostics,
} from "@codemirror/lint";
export {
  acceptCompletion,
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completeFromList,
  completionKeymap,
  startCompletion,
} from "@codemirror/autocomplete";
export {
  gotoLine,
  highlightSelectionMatches,
  openSearchPanel,
  search,
  searchKeymap,
} from "@codemirror/search";
export { json, jsonLanguage, jsonParseLinter } from "@codemirror/lang-json";
export {
  MergeView,
  getChunks,
  goToNextChunk,
  goToPreviousChunk,
  unifiedMergeView,
  updateOriginalDoc,
} from "@codemirror/merge";
export { tags } from "@lezer/highlight";
