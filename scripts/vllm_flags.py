"""Write down every flag, subcommand and environment variable of an installed vLLM, as JSON on stdout.

    ENGINE_PYTHON scripts/vllm_flags.py > src/tidegate/engines/vllm_flags.json

It reads vLLM's own parser, so it has to run in vLLM's environment.
"""

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):  # vLLM logs to stdout
        import vllm.entrypoints.cli
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.model_executor.models.registry import _PREVIOUSLY_SUPPORTED_MODELS, ModelRegistry
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        from vllm import __version__, envs

        parser = make_arg_parser(FlexibleArgumentParser())
        commands = set()
        found = pkgutil.iter_modules(vllm.entrypoints.cli.__path__, "vllm.entrypoints.cli.")
        for module in (*(one.name for one in found), "vllm.entrypoints.cli.benchmark.main"):
            for value in vars(importlib.import_module(module)).values():
                if isinstance(value, type) and isinstance(getattr(value, "name", None), str):
                    commands.add(value.name)
    flags = [described(action) for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse tells of its flags nowhere else
    told = {
        "version": __version__,
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "dropped": dict(sorted(_PREVIOUSLY_SUPPORTED_MODELS.items())),
        "commands": sorted(commands),
        "environment": sorted(name for name in envs.environment_variables if name.startswith("VLLM_")),
        "flags": sorted(flags, key=lambda flag: flag["names"][0]),
    }
    lines = ",\n    ".join(json.dumps(flag) for flag in told.pop("flags"))
    head = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in told.items())
    print(f'{{\n  {head},\n  "flags": [\n    {lines}\n  ]\n}}')


def described(action: argparse.Action) -> dict[str, object]:
    """A flag: its names (the canonical one first), how many values it takes, of what kind, out of which."""
    names = sorted(action.option_strings, key=lambda name: (name.startswith("--no-"), not name.startswith("--")))
    takes = {"?": "optional", "+": "many", "*": "many", 0: "none", None: "one"}.get(action.nargs, "many")
    kind = getattr(action.type, "__name__", "str")
    flag: dict[str, object] = {"names": names, "takes": takes}
    if takes != "none":
        flag["kind"] = {"human_readable_int": "int", "human_readable_int_or_auto": "int"}.get(kind, kind)
    if flag.get("kind") not in {None, "int", "float", "str"}:
        flag["kind"] = "json"
    if action.choices:
        flag["choices"] = [str(choice) for choice in action.choices]
    if isinstance(action.default, bool | int | float | str) and action.default != argparse.SUPPRESS:
        flag["default"] = action.default
    if getattr(action, "deprecated", False) or "deprecated" in (action.help or "").lower()[:80]:
        flag["deprecated"] = True
    return flag


if __name__ == "__main__":
    main()
