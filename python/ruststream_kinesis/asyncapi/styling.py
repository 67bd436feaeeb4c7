"""How the page of a document looks."""

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --back: #fff; --card: #f7f8fa; --line: #dfe3e8; --text: #1c2430; --quiet: #5d6b7c;
  --link: #0a58ca; --code: #eceff3; --receive: #0f6b3a; --send: #8a3b00; --needed: #a3221d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14181f; --card: #1b212b; --line: #303947; --text: #e3e8ef; --quiet: #9aa8ba;
    --link: #7fb4ff; --code: #283140; --receive: #1f8a50; --send: #b8591a; --needed: #ff9c93;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
main { max-width: 56rem; padding: 1rem; overflow-wrap: anywhere; }
nav { padding: 1rem; border-bottom: 1px solid var(--line); font-size: .9rem; }
nav p { margin: .4rem 0 0; font-weight: 600; }
nav ul { display: none; list-style: none; margin: 0; padding: 0 0 0 .8rem; }
nav > p { display: inline-block; margin-right: 1rem; }
h1 { margin: .5rem 0; font-size: 1.8rem; line-height: 1.2; }
h1 small { color: var(--quiet); font-size: 1rem; font-weight: 400; }
h2 { margin: 2rem 0 .6rem; font-size: 1.2rem; }
h3 { margin: 0 0 .4rem; font-size: 1rem; }
p { margin: .35rem 0; }
article {
  margin: .7rem 0; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 8px;
  background: var(--card);
}
article:target { border-color: var(--link); }
.self { color: inherit; }
.quiet { color: var(--quiet); }
.prose { white-space: pre-line; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .88em; }
code { padding: .1em .3em; border-radius: 4px; background: var(--code); }
pre {
  overflow: auto; max-height: 40rem; padding: .8rem; border: 1px solid var(--line);
  border-radius: 8px; background: var(--card); overflow-wrap: normal;
}
summary { cursor: pointer; }
.badge {
  display: inline-block; padding: .05rem .5rem; border-radius: 99px; color: #fff;
  font-size: .75rem; font-weight: 600; vertical-align: .1em;
}
.receive { background: var(--receive); }
.send { background: var(--send); }
.plain { list-style: none; margin: .35rem 0; padding: 0; }
.values { display: flex; flex-wrap: wrap; gap: .3rem .9rem; margin: .6rem 0 0; padding: 0;
  list-style: none; color: var(--quiet); font-size: .88rem; }
.values code { color: var(--text); }
dl { margin: .5rem 0 0; }
dt { padding-top: .45rem; border-top: 1px solid var(--line); }
dt > span { margin-left: .4rem; }
dt > code { font-weight: 600; }
dd { margin: 0 0 .45rem; color: var(--quiet); font-size: .92rem; }
.needed { color: var(--needed); font-size: .85rem; }
@media (min-width: 62rem) {
  body { display: grid; grid-template-columns: 17rem minmax(0, 1fr); }
  nav { position: sticky; top: 0; height: 100vh; overflow: auto; border: 0;
    border-right: 1px solid var(--line); overflow-wrap: anywhere; }
  nav > p { display: block; margin: .8rem 0 0; }
  nav ul { display: block; }
  main { padding: 1rem 2rem 4rem; }
}
@media print { nav { display: none; } body { display: block; } }
"""
