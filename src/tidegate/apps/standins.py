"""Empty stand-ins for what Chainlit imports at its start and this page never calls.

Chainlit imports LiteralAI's client, a hosted service that is not used here, and with it Traceloop and some fifty
instrumentation packages; and `mcp`, for a feature that is switched off. With the stand-ins the import takes 0.75 s
instead of 2.3 s (2 cores, warm), and half of all distributions need not be installed; see docs/decisions/0060.
"""

import sys
from types import ModuleType

STAND_INS = {
    "literalai.client": ("AsyncLiteralClient", "LiteralClient"),
    "mcp": ("ClientSession",),
    "traceloop": (),
    "traceloop.sdk": ("Traceloop",),
}
"""Modules, and the names that are imported from them."""


def install() -> None:
    """Put the stand-ins where `import` looks first. Before Chainlit is imported; whether or not the real ones exist."""
    for name, classes in STAND_INS.items():
        module = ModuleType(name, "A stand-in; see tidegate.apps.standins.")
        for each in classes:
            setattr(module, each, type(each, (), {}))
        sys.modules.setdefault(name, module)
