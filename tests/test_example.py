"""`tidegate.example.toml` shows every setting, its meaning and its default, and nothing else.

To write it anew: `tidegate check-config --example > tidegate.example.toml`.
"""

import re
import tomllib
from pathlib import Path

import pytest

from tidegate.config import ModelSettings, PoolSettings, Section, Settings, example, fields, load, sections

FILE = Path(__file__).parents[1] / "tidegate.example.toml"
ALL = [kind for kind in vars(sections).values() if isinstance(kind, type) and issubclass(kind, Section)]


def test_the_file_is_what_the_code_says():
    assert FILE.read_text(encoding="utf-8") == example.render_example()


def test_the_file_as_it_is_changes_nothing_but_the_model_and_pool_it_shows():
    shown = load(FILE, environ={})
    name = "ernie-4.5-0.3b"
    assert shown == Settings(model=(ModelSettings(name=name),), pool=(PoolSettings(name="default", model=name),))


@pytest.mark.parametrize("engine", list(PoolSettings.OPTIONS))
def test_every_line_is_a_setting_and_shows_its_default(tmp_path, engine):
    """Every example line is taken in, those of [pool.options] for one engine at a time."""
    text = FILE.read_text(encoding="utf-8")
    blocks = re.split(r"^(?=## For engine = )", text, flags=re.MULTILINE)
    text = blocks[0] + next(block for block in blocks[1:] if block.startswith(f'## For engine = "{engine}"'))
    text = re.sub(
        r"^# (?=[a-z_]+ = |\[\[)",
        "",
        text.replace('engine = "llamacpp"', f'engine = "{engine}"', 1),
        flags=re.MULTILINE,
    )
    if engine == "external":
        text = text.replace("urls = []", 'urls = ["http://127.0.0.1:8100"]')
        text = re.sub(r"^replicas_m(in|ax) = .*$", "", text, flags=re.MULTILINE)  # for engines that are started
    file = tmp_path / "all.toml"
    file.write_text(text, encoding="utf-8")
    loaded = load(file, environ={})
    assert loaded.pool[0].engine == engine
    without = set(re.findall(r"^(\w+) = .*  # no default$", text, re.MULTILINE))
    parts = [getattr(loaded, name) for name in ("gateway", "admin", "chat", "store", "log", "engines", "ray", "limits")]
    lists = [getattr(loaded, name)[0] for name in ("klass", "rule", "tenant")]
    pool = loaded.pool[0]
    for part in [*parts, *lists, pool.scaling, pool.ray, pool.dns, loaded.pool[0].engine_options()]:
        for name, field in type(part).model_fields.items():
            if field.default is None:
                assert name in without
                assert getattr(part, name) is not None
            elif not field.is_required():
                assert getattr(part, name) == field.default


def test_every_setting_is_in_the_file():
    names = set(re.findall(r"^(?:# )?([a-z0-9_]+) = ", FILE.read_text(encoding="utf-8"), re.MULTILINE))
    tables = set(re.findall(r"^(?:# )?\[+([a-z.]+)\]+$", FILE.read_text(encoding="utf-8"), re.MULTILINE))
    known = {name for kind in ALL if kind is not Settings for name in fields.known(kind)}
    assert names == known - {"defaults", "options", "scaling", "ray", "dns"}
    assert tables == {
        "report",
        "gateway",
        "admin",
        "chat",
        "store",
        "log",
        "engines",
        "ray",
        "limits",
        "class",
        "rule",
        "tenant",
        "model",
        "model.defaults",
        "pool",
        "pool.scaling",
        "pool.ray",
        "pool.dns",
        "pool.options",
    }
    assert tomllib.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ALL)
def test_every_setting_has_a_meaning(kind):
    assert kind.__doc__
    if kind is not Settings:
        assert [name for name in kind.model_fields if not example.meaning(kind, name)] in (
            [],
            ["defaults"],
            ["scaling", "ray", "dns", "options"],
        )
