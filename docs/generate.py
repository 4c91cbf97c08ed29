"""Write the generated pages of `docs/` from the code, or check that they are up to date.

Run by `make docs` and, with `--check`, by `make check`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from clusterscrapy import config
from clusterscrapy.setting import Rule

DOCS = Path(__file__).parent
WHY = "Why:"

HEADER = """\
<!-- Generated from clusterscrapy/config.py by `make docs`; do not edit. -->

# Settings

Each setting can be given in five places. The first in this list wins:

1. the command line: `scrapy crawl NAME -s CLUSTER_CRAWL_ID=monday`
2. an environment variable of the same name (an empty one counts as not given)
3. the spider: `custom_settings` or `update_settings`
4. the project's `settings.py`
5. an add-on

On the command line and in the environment, switches are written as `1`, `true`, `yes`, `on`, `0`,
`false`, `no` or `off`, and lists with commas. A wrong value, and a name beginning with `CLUSTER_`
that is not listed here, end the worker with exit code 8 and a sentence that says what to change. An
unknown name in the environment is only a warning.
"""


def settings_page() -> str:
    """The text of `docs/settings.md`."""
    docstrings = _attribute_docstrings()
    parts = [HEADER, _overview()]
    for section in config.SECTIONS:
        parts.append(f"## {_title(section)}\n")
        parts += [_entry(f, docstrings[f.name]) for f in fields(section)]
    return "\n".join(parts)


def _attribute_docstrings() -> dict[str, str]:
    # Python keeps no docstring of an attribute, so they are read from the source.
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(inspect.getsource(config))):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement, after in zip(node.body, node.body[1:], strict=False):
            match statement, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = inspect.cleandoc(text)
    return found


def _overview() -> str:
    rows = ["| setting | default | unit |", "|---|---|---|"]
    for f in (f for section in config.SECTIONS for f in fields(section)):
        name = config.setting_name(f.name)
        rows.append(f"| [`{name}`](#{name.lower()}) | {_default(f)} | {_rule(f).unit or '-'} |")
    return "\n".join(rows) + "\n"


def _entry(f: Field[Any], docstring: str) -> str:
    meaning, _, why = docstring.partition(WHY)
    if not why.strip():
        raise SystemExit(f"{f.name} in config.py gives no reason; add a paragraph '{WHY} …'")
    facts = [f"Default: {_default(f)}", *_facts(_rule(f))]
    return (
        f"### {config.setting_name(f.name)}\n\n{'. '.join(facts)}.\n\n"
        f"{meaning.strip()}\n\n*{WHY}* {why.strip()}\n"
    )


def _facts(rule: Rule) -> list[str]:
    facts = []
    if rule.unit:
        facts.append(f"Unit: {rule.unit}")
    if rule.choices:
        facts.append(f"One of: {', '.join(f'`{choice}`' for choice in rule.choices)}")
    bounds = (("At least", rule.at_least), ("Above", rule.above), ("Below", rule.below))
    return facts + [f"{words}: {bound:g}" for words, bound in bounds if bound is not None]


def _rule(f: Field[Any]) -> Rule:
    rule = f.metadata["rule"]
    assert isinstance(rule, Rule)
    return rule


def _default(f: Field[Any]) -> str:
    assert f.default is not MISSING
    if f.default in ("", ()):
        return "empty"
    if isinstance(f.default, bool):
        return "`1`" if f.default else "`0`"
    return f"`{f.default:g}`" if isinstance(f.default, float) else f"`{f.default}`"


def _title(section: type) -> str:
    return (section.__doc__ or section.__name__).splitlines()[0].rstrip(".")


PAGES = {"settings.md": settings_page}


def stale_pages() -> list[str]:
    """The differences of every page that is not what the code says, as unified diffs."""
    diffs = []
    for name, build in PAGES.items():
        path = DOCS / name
        written = path.read_text() if path.exists() else ""
        diff = difflib.unified_diff(
            written.splitlines(), build().splitlines(), f"docs/{name}", "the code", lineterm=""
        )
        if text := "\n".join(diff):
            diffs.append(text)
    return diffs


def main() -> int:
    """Write the pages, or check them; the exit code says whether they were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if out of date")
    if not parser.parse_args().check:
        for name, build in PAGES.items():
            (DOCS / name).write_text(build())
        return 0
    stale = stale_pages()
    if stale:
        print(*stale, "The generated pages are out of date; run: make docs", sep="\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
