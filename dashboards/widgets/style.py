"""The look: one style sheet that reads on light and dark, because its tints come from the text's own colour."""

from __future__ import annotations

# Text in these colours keeps a contrast of 4.5 on the background of the light and of the dark theme.
STYLE = """
<style>
:root { --better: light-dark(#237032, #69db7c); --worse: light-dark(#c92a2a, #ff8787);
  --fair: light-dark(#1864ab, #74c0fc); --weak: light-dark(#b03a08, #ffa94d); }
[data-testid="stMainBlockContainer"] { padding: 4.4rem clamp(1rem, 3vw, 3rem) 2rem; max-width: 1500px; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.7rem; padding: 0; }
[data-testid="stMainBlockContainer"] h2 { font-size: 1.3rem; padding: .3rem 0; }
[data-testid="stMainBlockContainer"] h3 { font-size: 1.05rem; padding: .2rem 0 0; }
[data-testid="stSidebarHeader"] { height: 2.5rem; }
.dc-tiles { display: grid; grid-template-columns: minmax(0, 1fr); gap: .75rem; }
@media (min-width: 760px) { .dc-tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (min-width: 1560px) { .dc-tiles { grid-template-columns: repeat(4, minmax(0, 1fr)); } }
.dc-tile { border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: .6rem;
  padding: .6rem .8rem .5rem; background: color-mix(in srgb, currentColor 3%, transparent); min-width: 0; }
.dc-tile h3 { font-size: .86rem; font-weight: 650; margin: 0; padding: 0; letter-spacing: .01em; cursor: help; }
.dc-tile table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
.dc-tile th { font-size: .72rem; font-weight: 400; opacity: .75; text-align: left; padding: .1rem .25rem .1rem 0;
  white-space: nowrap; }
.dc-tile thead th { text-align: right; }
.dc-tile td { padding: .12rem 0 .12rem .3rem; white-space: nowrap; text-align: right; font-size: .8rem; }
.dc-tile td b { font-size: 1.08rem; font-weight: 650; }
.dc-tile small, .dc-unit { font-size: .72rem; opacity: .75; }
.dc-tile td[title] { cursor: help; }
.dc-better { color: var(--better); } .dc-worse { color: var(--worse); } .dc-cannot-tell, .dc-even { opacity: .75; }
.dc-verdict { font-size: 1.12rem; line-height: 1.4; margin: 0; }
.dc-verdict b { font-weight: 700; }
.dc-why { margin: .15rem 0 0; opacity: .85; }
.dc-footer { font-size: .78rem; opacity: .8; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; }
.dc-footer code { font-size: .76rem; }
.dc-table { overflow-x: auto; }
.dc-table table { border-collapse: collapse; width: 100%; font-size: .84rem; font-variant-numeric: tabular-nums; }
.dc-table th, .dc-table td { padding: .3rem .55rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid color-mix(in srgb, currentColor 14%, transparent); }
.dc-table th:first-child, .dc-table td:first-child { text-align: left; }
.dc-facts th, .dc-facts td { text-align: left !important; white-space: normal !important; }
.dc-table thead th { font-weight: 600; }
.dc-compare td b { font-weight: 600; }
.dc-compare small, .dc-run small { opacity: .8; }
[class*="st-key-badge-"] button { border-radius: 1rem; border: 1px solid currentColor; padding: .05rem .7rem; }
.st-key-badge-measured button { color: var(--better); }
.st-key-badge-interpolated button { color: var(--fair); }
.st-key-badge-extrapolated button { color: var(--weak); }
</style>
"""
