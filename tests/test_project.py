"""The project's own promises: what is locked, what is said in documents, what is ignored and why."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tidegate.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("build", "base", "dev")
TEXT = {"", ".py", ".md", ".toml", ".txt", ".in", ".ini", ".mako", ".js", ".jsx", ".css", ".html", ".json", ".sh"}


def project_files() -> list[Path]:
    """Every text file of the project; what `git ls-files` would name, without needing git."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in (".ci", "docs", "requirements", "scripts", "src", "tests"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in files if path.suffix in TEXT]


def documents() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def locked(name: str) -> dict[str, list[Requirement]]:
    """The packages of a lock, by name; more than one where versions of Python differ."""
    packages: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^[^\s#].*", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE):
        requirement = Requirement(line.removesuffix("\\"))
        packages.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return packages


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


# what is locked


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_one_version_and_hashes(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    blocks = re.split(r"\n(?=[^\s#])", text)[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"[a-z0-9._-]+==[\w.]+ (; .+ )?\\\n", block), block
        assert re.search(r"^    --hash=sha256:[0-9a-f]{64}", block, re.MULTILINE), block


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_names_an_index_an_address_or_a_file(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert not re.search(r"^-|://|file:|--index|--extra|--find|--trusted| @ ", text, re.MULTILINE)


def test_the_locks_fit_what_pyproject_asks_for_and_one_another():
    base, dev = locked("base"), locked("dev")
    for line in pyproject()["project"]["dependencies"]:
        wanted = Requirement(line)
        versions = base[canonicalize_name(wanted.name)]
        assert all(wanted.specifier.contains(str(v.specifier).removeprefix("==")) for v in versions), line
    for line in pyproject()["project"]["optional-dependencies"]["dev"]:
        assert canonicalize_name(Requirement(line).name) in dev, line
    assert {name: str(found) for name, found in base.items()} == {name: str(dev.get(name)) for name in base}


def imported(folder: Path) -> set[str]:
    """Names of the distributions that a folder's modules import; pydantic-core is pydantic's other half."""
    roots = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                roots.add(node.module.partition(".")[0])
    owners = importlib.metadata.packages_distributions()
    return {canonicalize_name(owners[root][0]) for root in roots if root in owners} - {"tidegate", "pydantic-core"}


def test_what_the_code_imports_is_a_dependency_of_its_own():
    project = pyproject()["project"]
    base = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    extras = {
        name: {canonicalize_name(Requirement(line).name) for line in lines}
        for name, lines in project["optional-dependencies"].items()
    }
    dev = extras.pop("dev")
    assert imported(ROOT / "src") <= base.union(*extras.values())
    assert imported(ROOT / "tests") <= base | dev


def test_packages_that_are_left_out_are_in_no_lock_and_have_a_reason():
    for line in (ROOT / "requirements" / "left-out.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, reason = line.split("#")
            assert reason.strip()
            assert not any(canonicalize_name(name.strip()) in locked(lock) for lock in LOCKS)


# what may not be in the tree


def test_no_registry_host_and_no_path_of_a_developers_machine_is_in_the_tree():
    hosts = (
        "pypi" + ".org",
        "python" + "hosted",
        "npmjs" + ".org",
        "debian" + ".org",
        "aliyun" + ".com",
        "edu" + ".cn",
    )
    paths = re.compile(r"(?<![\w.~$}/-])/(work|root|opt/wheels|opt/pypi|home/[a-z]+)/\w")
    for file in project_files():
        text = file.read_text()
        assert not [host for host in hosts if host in text], file
        assert not paths.search(text), (file, paths.search(text))


# ignored rules


def test_every_lint_rule_that_is_ignored_has_its_reason_on_the_line():
    text = (ROOT / "pyproject.toml").read_text()
    ignores = text.partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.mccabe]")[0].partition("ignore = [")[2]
    lines = [line for line in ignores.splitlines() if re.match(r'\s*"[A-Z]|"', line)]
    assert len(lines) > 10
    for line in lines:
        assert re.search(r"# \w.+", line) or line.endswith("= ["), line


def test_every_ignore_in_the_code_has_its_reason_on_the_line():
    mark = re.compile(r"# (?:noqa|type: ignore)\b[^#\n]*(?:#.*)?")
    for file in project_files():
        if file.suffix == ".py" and file != Path(__file__).resolve():
            for found in mark.finditer(file.read_text()):
                assert re.search(r"(noqa: [A-Z0-9, ]+ - \S|ignore\[[a-z-]+\]  # \w)", found[0]), (file, found[0])


# what the documents say


def make_targets() -> set[str]:
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_command_of_the_documents_is_a_target():
    said = set()
    for file in documents():
        said |= set(re.findall(r"(?:^|`|\s)make ([a-z]+)(?=[`\s]|$)", code_of(file.read_text()), re.MULTILINE))
    assert {"up", "test", "check"} <= said <= make_targets()


def test_every_tidegate_command_of_the_documents_exists():
    for file in documents():
        if file.parent.name == "decisions":  # they also name what was turned down
            continue
        for name in re.findall(r"(?:^|[`\s/])tidegate ([a-z][a-z-]+)\b", code_of(file.read_text()), re.MULTILINE):
            assert name in COMMANDS, (file, name)


def code_of(text: str) -> str:
    """The code of a document: blocks, and what stands in backquotes."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return "\n".join([*blocks, *spans])


def test_every_link_between_documents_leads_somewhere():
    for file in documents():
        for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
            if "://" not in target and not target.startswith("#"):
                assert (file.parent / target.partition("#")[0]).exists(), (file, target)


def test_both_readmes_have_the_same_parts_and_link_to_each_other():
    english, chinese = (ROOT / "README.md").read_text(), (ROOT / "README.zh-CN.md").read_text()
    assert "](README.zh-CN.md)" in english
    assert "](README.md)" in chinese
    for part in (r"^#+ ", r"^- ", r"^\|", r"^```"):
        assert len(re.findall(part, english, re.MULTILINE)) == len(re.findall(part, chinese, re.MULTILINE)), part


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    for file in folder.glob("[0-9]*.md"):
        assert f"]({file.name})" in listed, file.name


def test_make_only_calls_scripts_that_can_be_run():
    for line in re.findall(r"^\t(.+)", (ROOT / "Makefile").read_text(), re.MULTILINE):
        if not line.startswith("@echo "):
            script = ROOT / line.removeprefix("@").split()[0]
            assert script.parent.name == "scripts"
            assert os.access(script, os.X_OK), script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# the set-up


def find_python(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "find-python"],
        env={"PATH": str(path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def stand_in(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_python_the_setup_says_what_to_install(tmp_path):
    cat = "exec /bin/cat"
    stand_in(tmp_path / "cat", cat)
    stand_in(tmp_path / "python3", "exit 1")
    answer = find_python(tmp_path)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "apt install python3 python3-venv" in answer.stderr
    assert "PYTHON=" in answer.stderr


def test_a_python_without_ensurepip_is_told_apart_from_none_at_all(tmp_path):
    stand_in(tmp_path / "cat", "exec /bin/cat")
    stand_in(tmp_path / "python3.12", 'case "$3" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac')
    answer = find_python(tmp_path)
    assert answer.returncode == 1
    assert "apt install python3.12-venv" in answer.stderr


def test_the_python_that_is_named_is_taken_and_no_other(tmp_path):
    stand_in(tmp_path / "cat", "exec /bin/cat")
    stand_in(tmp_path / "python3.13", "exit 0")
    assert find_python(tmp_path).stdout.strip() == str(tmp_path / "python3.13")
    assert find_python(tmp_path, PYTHON=sys.executable).stdout.strip() == sys.executable
    refused = find_python(tmp_path, PYTHON="/nowhere/python3")
    assert refused.returncode == 1
    assert "PYTHON=/nowhere/python3 is not a Python 3.11 or newer" in refused.stderr


@pytest.fixture
def install(tmp_path, monkeypatch) -> ModuleType:
    """scripts/install.py, working on a tree of its own."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    for name in LOCKS:
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"{name}==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.delenv("PYTHON", raising=False)
    return module


def stamped(install: ModuleType, level: str) -> None:
    install.stamp(level).write_text(install.fingerprint(level))


def test_an_installation_is_whole_only_with_the_stamp_that_is_written_last(install):
    stand_in(install.VENV_PYTHON, "echo 3.12.1 of somebody")
    assert not install.is_installed("base")
    stamped(install, "base")
    assert install.is_installed("base")
    assert not install.is_installed("dev")


@pytest.mark.parametrize("changed", ["requirements/base.txt", "requirements/build.txt", "pyproject.toml"])
def test_an_installation_is_redone_when_what_it_was_made_from_changed(install, changed):
    stand_in(install.VENV_PYTHON, "echo 3.12.1 of somebody")
    stamped(install, "base")
    (install.ROOT / changed).write_text("changed")
    assert not install.is_installed("base")


def test_a_broken_venv_or_one_of_another_python_is_not_taken_for_whole(install, monkeypatch):
    stamped(install, "base")
    assert not install.is_installed("base"), "it has no Python"
    stand_in(install.VENV_PYTHON, "exit 1")
    assert not install.is_installed("base"), "its Python cannot import the package"
    stand_in(install.VENV_PYTHON, "echo 3.10.9 of somebody")
    assert not install.is_installed("base"), "its Python is too old"
    stand_in(install.VENV_PYTHON, "echo 3.12.1 of somebody")
    assert install.is_installed("base")
    monkeypatch.setenv("PYTHON", sys.executable)
    assert not install.is_installed("base"), "its Python is not the one that is named"


# the package


def test_the_wheel_holds_all_that_runs(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("tidegate-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tidegate/")}
    source = ROOT / "src"
    kept = {
        str(path.relative_to(source))
        for path in (source / "tidegate").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == kept
    assert "tidegate/py.typed" in packed
    assert any(name.startswith("tidegate/store/migrations/") for name in packed)
