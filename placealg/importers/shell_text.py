"""The grammar of shell scripts, as far as launch scripts use it: words, commands, if, for, while, case, functions.

Nothing is run: `shell.py` follows the tree that is made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from placealg.errors import InputError

Node = "Simple | If | Loop | Case | Function"
OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", ">&", "<&", "&>", ";", "|", "&", "(", ")", "<", ">", "\n")
REDIRECTS = ("<", ">", ">>", "<<<", "<<", "<<-", ">&", "<&", "&>")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\Z")
MAX_DEPTH = 60
_PLACEHOLDER = re.compile(r"<[A-Z](?:[^<>|&;\n]*[^<>|&;\s])?>")
"""What an example leaves to its reader, such as <PATH TO DATA>: a word, and no redirection."""


@dataclass(frozen=True, slots=True)
class ShellToken:
    """A raw word, quotes and all, or an operator; `body` is the text of a here-document."""

    text: str
    line: int
    operator: bool = False
    body: str = ""


@dataclass(slots=True)
class Simple:
    """A simple command: its raw words, the text of its here-document, and the operator that follows it."""

    words: list[ShellToken]
    body: str = ""
    after: str = ""
    target: str = ""


@dataclass(slots=True)
class If:
    """(condition, branch) pairs, the else branch last with no condition."""

    arms: list[tuple[list[object], list[object]]]
    line: int = 0


@dataclass(slots=True)
class ShellLoop:
    """A for loop over words, or, with `name` "", a while or until loop."""

    name: str
    words: list[ShellToken]
    body: list[object]


@dataclass(slots=True)
class ShellCase:
    """A word, and (patterns, body) per arm."""

    word: ShellToken
    arms: list[tuple[list[str], list[object]]] = field(default_factory=list)


@dataclass(slots=True)
class ShellFunction:
    """A named body."""

    name: str
    body: list[object]


def tokens(text: str, file: str) -> list[ShellToken]:
    """The tokens of a script."""
    return list(_Lexer(text, file).tokens())


class _Lexer:
    def __init__(self, text: str, file: str):
        self.text, self.file, self.at, self.line = text.replace("\\\n", " \x00"), file, 0, 1
        self.pending: list[tuple[str, bool, int]] = []
        self.found: list[ShellToken] = []

    def tokens(self) -> list[ShellToken]:
        text = self.text
        while self.at < len(text):
            sign = text[self.at]
            if sign == "\x00":
                self.line += 1
                self.at += 1
            elif sign in " \t\r":
                self.at += 1
            elif sign == "#":
                while self.at < len(text) and text[self.at] not in "\n\x00":
                    self.at += 1
                if self.at < len(text):
                    self.operator("\n")
            elif operator := next((o for o in OPERATORS if text.startswith(o, self.at)), ""):
                if operator == "(" and self.found and _ARRAY.search(self.found[-1].text) and not text[
                        self.at - 1].isspace():
                    self.array()
                else:
                    self.operator(operator)
            else:
                self.word()
        return self.found

    def operator(self, operator: str) -> None:
        self.found.append(ShellToken(operator, self.line, True))
        self.at += len(operator)
        if operator == "\n":
            self.line += 1
            for place, strip, index in self.pending:
                body = self.here(place, strip)
                old = self.found[index]
                self.found[index] = ShellToken(old.text, old.line, True, body)
            self.pending.clear()
        if operator in ("<<", "<<-"):
            index = len(self.found) - 1
            while self.text[self.at:self.at + 1] in (" ", "\t"):
                self.at += 1
            start = self.at
            self.word()
            del self.found[-1]
            word = self.text[start:self.at]
            self.pending.append((word.strip("'\"\\"), operator == "<<-", index))

    def here(self, end: str, strip: bool) -> str:
        lines = []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at:stop]
            self.line += 1 + line.count("\x00")
            self.at = stop + 1
            line = line.lstrip("\t") if strip else line
            if line.strip() == end:
                break
            lines.append(line.replace("\x00", "\\\n"))
        return "\n".join(lines)

    def array(self) -> None:
        start, line = self.found.pop(), self.line
        inner = self.balanced("(", ")")
        self.found.append(ShellToken(f"{start.text}({inner})", start.line or line))

    def balanced(self, left: str, right: str) -> str:
        """The text between brackets, which begin here; quotes hide brackets."""
        depth, begin = 0, self.at + len(left)
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in "'\"":
                self.quoted(sign)
                continue
            if sign == "#" and left == "(" and self.text[self.at - 1].isspace():
                while self.at < len(self.text) and self.text[self.at] not in "\n\x00":
                    self.at += 1
                continue
            if sign == "\\":
                self.at += 1
            self.line += sign in "\n\x00"
            depth += (sign == left) - (sign == right)
            self.at += 1
            if depth == 0:
                return self.text[begin:self.at - 1]
        raise InputError(f"a '{left}' is not closed", where=f"{self.file}:{self.line}")

    def quoted(self, sign: str) -> None:
        start = self.line
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != sign:
            if sign == '"' and self.text.startswith("$(", self.at):
                self.at += 1
                self.balanced("(", ")")
                continue
            if self.text[self.at] == "\\" and sign == '"':
                self.at += 1
            self.line += self.text[self.at:self.at + 1] in ("\n", "\x00")
            self.at += 1
        if self.at >= len(self.text):
            raise InputError(f"a quote {sign} is not closed", where=f"{self.file}:{start}")
        self.at += 1

    def word(self) -> None:
        start, line, text = self.at, self.line, self.text
        while self.at < len(text):
            sign = text[self.at]
            if sign in "'\"":
                self.quoted(sign)
            elif sign == "`":
                self.at = text.find("`", self.at + 1) + 1 or len(text)
            elif text.startswith("$(", self.at):
                self.at += 1
                self.balanced("(", ")")
            elif text.startswith("${", self.at):
                self.at += 1
                self.balanced("{", "}")
            elif sign == "\\":
                self.at += 2
            elif sign in " \t\r\x00" or any(text.startswith(o, self.at) for o in OPERATORS):
                break
            else:
                self.at += 1
        if self.at == start:
            self.at += 1
        self.found.append(ShellToken(text[start:self.at], line))


def parse_script(text: str, file: str) -> list[object]:
    """The commands of a script."""
    return ShellParser(tokens(_PLACEHOLDER.sub("PLACEHOLDER", text), file), file).block(())


class ShellParser:
    """Recursive descent over tokens."""

    def __init__(self, found: list[ShellToken], file: str):
        self.found, self.file, self.at, self.depth = found, file, 0, 0

    def peek(self) -> ShellToken | None:
        """The next token."""
        return self.found[self.at] if self.at < len(self.found) else None

    def block(self, ends: tuple[str, ...]) -> list[object]:
        """Commands up to one of the words `ends`, which is left."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError("nested too deeply", where=self.file)
        nodes: list[object] = []
        while (token := self.peek()) is not None:
            if token.text in ends and (not token.operator or token.text in (")", ";;")):
                break
            if token.operator and token.text in ("\n", ";", "&", "&&", "||", "|", ";;", ")"):
                if nodes and isinstance(nodes[-1], Simple) and not nodes[-1].after:
                    nodes[-1].after = token.text
                self.at += 1
                continue
            nodes += self.command(token)
        self.depth -= 1
        return nodes

    def command(self, token: ShellToken) -> Iterator[object]:
        """One command, as no node or one."""
        readers = {"if": self.branch, "for": self.loop, "while": self.repeat, "until": self.repeat, "case": self.case,
                   "{": self.group, "(": self.group, "function": self.function, "!": self.skip}
        reader = readers.get(token.text)
        if reader and (not token.operator or token.text == "("):
            yield from reader()
        elif self.at + 2 < len(self.found) and self.found[self.at + 1].text == "(" and self.found[
                self.at + 2].text == ")":
            yield from self.function()
        else:
            yield self.simple()

    def skip(self) -> Iterator[object]:
        """Pass a word over."""
        self.at += 1
        return iter(())

    def expect(self, word: str, line: int) -> None:
        """Pass over newlines, then the word."""
        while (token := self.peek()) is not None and token.operator and token.text in ("\n", ";"):
            self.at += 1
        if token is None or token.text != word:
            raise InputError(f"expected '{word}' for what begins here", where=f"{self.file}:{line}")
        self.at += 1

    def branch(self) -> Iterator[object]:
        """if ... fi."""
        line, arms = self.found[self.at].line, []
        self.at += 1
        while True:
            condition = self.block(("then",))
            self.expect("then", line)
            arms.append((condition, self.block(("elif", "else", "fi"))))
            word = self.peek()
            if word is None:
                raise InputError("expected 'fi' for the 'if' here", where=f"{self.file}:{line}")
            self.at += 1
            if word.text == "else":
                arms.append(([], self.block(("fi",))))
                self.expect("fi", line)
            if word.text in ("else", "fi"):
                break
        yield If(arms, line)

    def loop(self) -> Iterator[object]:
        """for NAME in WORDS; do ... done."""
        line = self.found[self.at].line
        self.at += 1
        name = self.found[self.at].text if self.peek() else ""
        if name == "(":
            while (token := self.peek()) is not None and token.text != "do":
                self.at += 1
        else:
            self.at += 1
        words: list[ShellToken] = []
        listed = (token := self.peek()) is not None and token.text == "in"
        self.at += listed
        while (token := self.peek()) is not None and not (token.operator and token.text in ("\n", ";")) and \
                token.text != "do":
            words.append(token)
            self.at += 1
        self.expect("do", line)
        body = self.block(("done",))
        self.expect("done", line)
        words = words if listed else [ShellToken('"$@"', line)]
        yield ShellLoop(name if re.fullmatch(r"\w+", name) else "", words, body)

    def repeat(self) -> Iterator[object]:
        """while ...; do ... done."""
        line = self.found[self.at].line
        self.at += 1
        self.block(("do",))
        self.expect("do", line)
        body = self.block(("done",))
        self.expect("done", line)
        yield ShellLoop("", [], body)

    def case(self) -> Iterator[object]:
        """case WORD in ... esac."""
        line = self.found[self.at].line
        made = ShellCase(self.found[self.at + 1] if self.at + 1 < len(self.found) else ShellToken("", line))
        self.at += 2
        self.expect("in", line)
        while True:
            while (token := self.peek()) is not None and token.operator and token.text in ("\n", ";;", ";", "("):
                self.at += 1
            if token is None or token.text == "esac":
                break
            patterns = []
            while (token := self.peek()) is not None and token.text != ")":
                patterns += [token.text] if not token.operator else []
                self.at += 1
            self.at += 1
            made.arms.append((patterns, self.block((";;", "esac"))))
        self.expect("esac", line)
        yield made

    def group(self) -> Iterator[object]:
        """{ ... } or ( ... ), as its commands."""
        opening = self.found[self.at]
        self.at += 1
        closing = "}" if opening.text == "{" else ")"
        body = self.block((closing,))
        self.at += 1
        yield from body

    def function(self) -> Iterator[object]:
        """NAME() { ... }."""
        self.at += self.found[self.at].text == "function"
        name = self.found[self.at].text
        self.at += 1
        while (token := self.peek()) is not None and token.text in ("(", ")", "\n"):
            self.at += 1
        body = list(self.group()) if token is not None and token.text == "{" else []
        yield ShellFunction(name, body)

    def simple(self) -> Simple:
        """Words up to an operator; redirections are left out."""
        made = Simple([])
        inside = False
        while (token := self.peek()) is not None:
            if not token.operator:
                inside = (inside or token.text == "[[") and token.text != "]]"
                made.words.append(token)
            elif inside and token.text != "\n":
                made.words.append(ShellToken(token.text, token.line))
            elif inside:
                pass
            elif token.text in REDIRECTS:
                made.body = token.body or made.body
                if made.words and made.words[-1].text.isdecimal() and len(made.words) > 1:
                    made.words.pop()
                if token.text not in ("<<", "<<-"):
                    self.at += 1
                    target = self.peek()
                    made.target = target.text if target is not None and token.text in (">", ">>") else made.target
                    if target is None or (target.operator and target.text == "\n"):
                        continue
            else:
                break
            self.at += 1
        return made
