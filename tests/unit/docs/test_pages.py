"""The words around the product keep up with the product."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import messages_page
import pytest

import bireme
from bireme.cli import processes
from bireme.cli.main import COMMANDS
from bireme.core import errors
from bireme.core.errors import BiremeError
from bireme.job.coordination import messages

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MENTIONED = {"cli/aws", "programs/config"}
"""Rooms that the architecture names in the row of their layer."""
ERRORS = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, BiremeError)]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


def code_of(text: str) -> str:
    return "\n".join(re.findall(r"```.*?```|`[^`]*`", text, flags=re.DOTALL))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def section_of(name: str) -> str:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def test_generated_pages_are_up_to_date() -> None:
    stale = [path.name for path in load_generator().stale_pages()]
    assert stale == [], "run `./dev docs`"


@pytest.mark.parametrize("error", ERRORS, ids=lambda c: c.__name__)
def test_every_error_has_a_section_with_its_exit_code(error: type[BiremeError]) -> None:
    assert f"Exit code {error.exit_code}." in section_of(error.__name__)


def test_no_section_is_about_an_error_that_is_gone() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)) == {c.__name__ for c in ERRORS}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8")))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_only_commands_that_exist(page: Path) -> None:
    code = code_of(page.read_text(encoding="utf-8"))
    # A command stands at the start of a line or of a span, or after a prompt, a pipe or `./dev`.
    named = set(re.findall(r"(?:^|[`$|&] ?|\./dev )bireme ([a-z]+)\b", code, flags=re.MULTILINE))
    assert named <= set(COMMANDS), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_only_options_of_dev_that_exist(page: Path) -> None:
    known = set(re.findall(r"^    ([a-z]+)[^()\n]*\)", (ROOT / "dev").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = set(re.findall(r"\./dev ([a-z]+)", page.read_text(encoding="utf-8")))
    assert named <= known, page.name


def test_the_readme_fits_on_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_readme_shows_one_picture() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(pictures) == 1 and (ROOT / pictures[0]).is_file()


def test_the_page_about_starting_by_hand_has_existing_flags() -> None:
    text = (ROOT / "docs" / "tutorial" / "by-hand.md").read_text(encoding="utf-8").replace("\\\n", " ")
    used = re.findall(r"bireme (pserver|trainer) ((?:--\w+=\S+\s*)+)", text)
    assert [name for name, _ in used] == ["pserver", "pserver", "trainer", "trainer"]
    for name, flags in used:
        known = {option for parameter in getattr(processes, name).params for option in parameter.opts}
        assert {flag.partition("=")[0] for flag in flags.split()} <= known


def test_the_page_about_compatibility_has_the_codes_versions() -> None:
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    versions = re.findall(r"`(\w*VERSION)` (\d+) in \[([\w/]+)\.py\]", text)
    assert len(versions) == 5
    for name, number, module in versions:
        code = importlib.import_module(f"bireme.{module.replace('/', '.')}")
        assert getattr(code, name) == int(number), module
    assert f"Version {bireme.__version__} is the first" in " ".join(text.split())


def test_every_control_message_has_sender_receiver_and_meaning() -> None:
    for message in messages.MESSAGES:
        assert all(messages_page.direction_of(message)), message.__name__


def definition(body: list[ast.stmt], name: str) -> list[ast.stmt] | None:
    """What is inside the definition of a name; None where it is not defined."""
    for each in body:
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        if getattr(each, "name", None) == name or any(getattr(target, "id", None) == name for target in targets):
            return getattr(each, "body", [])
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_function_that_a_page_names_is_in_that_file(page: Path) -> None:
    for file, names in re.findall(r"\b((?:[a-z_]+/)+[a-z_]+\.py):([A-Za-z_]\w*(?:\.\w+)*)", page.read_text("utf-8")):
        body: list[ast.stmt] | None = ast.parse((ROOT / "src" / "bireme" / file).read_text("utf-8")).body
        for name in names.split("."):
            body = definition(body or [], name)
            assert body is not None, f"{page.name} names {file}:{names}"


def test_the_architecture_names_many_functions_and_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(re.findall(r"\w\.py:[A-Za-z_]", text)) > 150
    source = ROOT / "src" / "bireme"
    rooms = {str(p.parent.relative_to(source)) for p in source.glob("**/__init__.py")} - {"."}
    assert rooms <= set(re.findall(r"^\| \[\S+\]\(\.\./src/bireme/([\w/]+)\)", text, flags=re.MULTILINE)) | MENTIONED


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_are_at_most_120_characters_long(page: Path) -> None:
    text = re.sub(r"```.*?```|<!-- (\w+): generated.*?<!-- end of \1 -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    # Tables cannot be wrapped, and a link or a span of code without a space has no place to break.
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]
    assert [line for line in long if len(re.sub(r"`[^`]*`", "`x`", line).split()) > 3] == []
