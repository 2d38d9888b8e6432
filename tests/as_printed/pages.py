"""README and ``docs/`` as readers find them: their blocks, and the programs that these make.

The Python blocks of one ``##`` section, in their order, are one program: what a reader copies into a file. What
must be in its environment stands in the section too, as ``$ export`` lines. Nothing is added to it: where a
block needs something, its page says so. How programs are run is ``programs``, commands are ``commands``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RUNBOOKS = tuple(page for page in PAGES if page.parent.name == "runbooks" and page.name != "README.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. ``line`` is that of its first line of text, counted from 1."""

    page: str
    section: str
    language: str
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What is typed in a console block; lines without a ``$`` are what is answered."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The Python blocks of one section."""

    blocks: tuple[Block, ...]
    environment: dict[str, str]

    @property
    def place(self) -> str:
        return self.blocks[0].place

    @property
    def needs_engine(self) -> bool:
        return any("build_engine" in block.text for block in self.blocks)

    @property
    def source(self) -> str:
        """The program, each line on its line of the page: a traceback names the page's own lines."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.text.splitlines()
        return "\n".join(lines) + "\n"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found, section = [], ""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            section = tokens[i + 1].content
        if token.type == "fence":
            found.append(
                Block(
                    page=str(page.relative_to(ROOT)),
                    section=section,
                    language=token.info.strip(),
                    line=token.map[0] + 2,
                    text=token.content,
                )
            )
    return found


def programs_of(page: Path) -> list[Program]:
    """Return the programs of a page, one for each section that has Python blocks."""
    sections: dict[str, list[Block]] = {}
    for block in blocks_of(page):
        sections.setdefault(block.section, []).append(block)
    return [
        Program(blocks=tuple(python), environment=_exports(blocks))
        for blocks in sections.values()
        if (python := [block for block in blocks if block.language == "python"])
    ]


def _exports(blocks: list[Block]) -> dict[str, str]:
    found = {}
    for block in blocks:
        for command in block.commands if block.language == "console" else ():
            words = shlex.split(command, comments=True)
            if words[:1] == ["export"]:
                found |= dict(word.split("=", 1) for word in words[1:])
    return found
