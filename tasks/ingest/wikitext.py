"""Wikitext (the markup of MediaWiki) to plain text, in time linear in the text.

Kept: prose, headings, list items, the labels of links, what stands between formatting tags, foreign words and measures
(`lang`, `convert` and the like: KEPT_ARGUMENTS). Left out: all other templates with their arguments (so what only a
template prints is missing), tables, references, comments, files, categories, links to other languages, magic words, and
tags that hold no prose (gallery, timeline, score, ...). Formulas stay, as LaTeX in $.
Markup that is never closed stays as it was written: nothing is lost to a missing bracket.
"""

import html
import re
from collections.abc import Iterable

MAX_DEPTH = 40  # of templates and links in each other, as in MediaWiki; deeper brackets are text
FILE_NAMES = frozenset({"file", "image", "media", "category"})  # English names work in every wiki
KEPT_ARGUMENTS = {  # of templates that print what they are given, English names
    **dict.fromkeys(("lang", "transl", "transliteration"), slice(1, 2)),
    **dict.fromkeys(("nowrap", "nobr", "small", "big", "em", "strong", "smallcaps"), slice(0, 1)),
    **dict.fromkeys(("convert", "cvt"), slice(0, 2)),
}
OPENERS = {"}}": "{{", "]]": "[[", "|}": "{|"}

# Bounds in braces keep each search linear: an opening that nothing closes is not followed through the whole page.
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = "ref|gallery|timeline|score|imagemap|references|templatedata|syntaxhighlight|source"
DROPPED = re.compile(
    rf"<({NO_PROSE})\b(?:[^<>/]|/(?!>)){{0,1000}}(?:/>|>(?:(?!<\1\b).){{0,100000}}?</\1\s{{0,9}}>)", re.I | re.DOTALL
)
MATH = re.compile(r"<(?:math|ce|chem)\b[^<>]{0,1000}>([^<]{0,100000})</(?:math|ce|chem)\s{0,9}>", re.I)
BREAK = re.compile(r"</?(?:br|hr|p|div)\b[^<>]{0,1000}>", re.I)
TAG = re.compile(r"</?[a-zA-Z][^<>]{0,1000}>")
LANGUAGE_LINK = re.compile(r"^\[\[[a-z]{2,3}(?:-[a-z]{1,12}){0,3}:[^\[\]|\n]{1,300}\]\][ \t]*$", re.M)
BRACKETS = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ :]{0,9}\{\||^[ ]{0,9}\|\}(?!\})", re.M)
WEB_LINK = re.compile(r"\[(?:https?://|ftp://|mailto:|//)[^\s\[\]<>]{1,2000}(?:[ \t]([^\[\]\n]{0,2000}))?\]")
QUOTES = re.compile(r"'{2,5}")
LIST_MARKS = re.compile(r"[*#;:]{1,20}")
MAGIC_WORDS = re.compile(r"__[A-Z]{3,30}__")
EMPTY_BRACKETS = re.compile(r"[ \t]?\([ \t,;:\xa0–-]{0,100}\)")  # all in them was a template
OPENING_MARK = re.compile(r"\([ \t]{0,9}[,;][ \t]{0,9}")  # "(; born 1900)": what came first was a template
SPACES = re.compile(r"[ \t]{2,}")
BLANK_LINES = re.compile(r"\n{3,}")


def plain_text(wikitext: str, file_names: Iterable[str] = ()) -> str:
    """The prose of a page. `file_names`: what the wiki calls its namespaces of files and categories."""
    closed, mark, rest = wikitext.rpartition("-->")
    text = COMMENT.sub("", closed + mark) + rest
    text = DROPPED.sub("", MATH.sub(_formula, text))
    text = LANGUAGE_LINK.sub("", BREAK.sub("\n", text))
    text = without_brackets(text, FILE_NAMES.union(name.lower() for name in file_names))
    text = QUOTES.sub("", TAG.sub("", WEB_LINK.sub(lambda found: found.group(1) or "", text)))
    text = html.unescape(MAGIC_WORDS.sub("", text)).replace("\xa0", " ")
    text = OPENING_MARK.sub("(", EMPTY_BRACKETS.sub("", text))
    text = "\n".join(map(_plain_line, text.split("\n")))
    return BLANK_LINES.sub("\n\n", text).strip()


def _formula(found: re.Match[str]) -> str:
    """A formula; its brackets, which LaTeX reads alike with a space between them, are no markup."""
    formula = found.group(1).strip()
    for double in ("{{", "}}", "[[", "]]"):
        formula = formula.replace(double, f"{double[0]} {double[1]}")
    return f"${formula}$"


def _plain_line(line: str) -> str:
    """A line without the marks of headings and lists."""
    line = SPACES.sub(" ", line.strip())
    if len(line) > 2 and line[0] == line[-1] == "=":
        return line.strip("=").strip()
    marks = LIST_MARKS.match(line)
    if marks is None:
        return line
    item = line[marks.end() :].strip()
    return f"- {item}" if item and marks.group()[-1] in "*#" else item


def without_brackets(text: str, left_out: frozenset[str]) -> str:
    """Templates and tables taken out, links replaced by their labels.

    A stack of open brackets, each with the pieces that follow it; a bracket that closes another kind is text.
    """
    stack: list[tuple[str, list[str]]] = [("", [])]
    at = 0
    for found in BRACKETS.finditer(text):
        stack[-1][1].append(text[at : found.start()])
        at = found.end()
        mark = found.group().strip(" :")
        if mark in OPENERS:
            _close(stack, mark, left_out)
        elif len(stack) > MAX_DEPTH:
            stack[-1][1].append(mark)
        else:
            stack.append((mark, []))
    stack[-1][1].append(text[at:])
    while len(stack) > 1:  # opened and never closed
        mark, pieces = stack.pop()
        stack[-1][1].extend((mark, *pieces))
    return "".join(stack[0][1])


def _close(stack: list[tuple[str, list[str]]], mark: str, left_out: frozenset[str]) -> None:
    opener = OPENERS[mark]
    opened = [kind for kind, _ in stack]
    if opener not in opened or (opener == "[[" and opened[-1] != "[["):
        stack[-1][1].append(mark)
        return
    while stack[-1][0] != opener:  # a link left open inside a template goes with it
        stack.pop()
    _, pieces = stack.pop()
    if opener == "[[":
        stack[-1][1].append(link_label("".join(pieces), left_out))
    elif opener == "{{":
        stack[-1][1].append(template_text("".join(pieces)))


def template_text(template: str) -> str:
    """What a template prints, where that is known: `{{lang|fr|mot}}` mot, `{{convert|5|km|mi}}` 5 km."""
    name, *arguments = template.split("|")
    name = name.strip().lower()
    kept = slice(0, 1) if name.startswith("lang-") else KEPT_ARGUMENTS.get(name)
    return " ".join(arguments[kept]) if kept else ""


def link_label(link: str, left_out: frozenset[str]) -> str:
    """What a link shows: `[[target|label]]` its label, `[[target]]` its target, a file or category nothing."""
    target, _, label = link.partition("|")
    prefix, colon, _ = target.partition(":")
    if colon and prefix.strip().lower() in left_out:
        return ""
    return label or target.lstrip(":")
