"""The whole of it, as a user has it: `tidegate up` with the demo model on llama.cpp."""

import pytest

from demo import demo_model_path
from up_site import Site

MODEL = """\
[[model]]
name = "smollm2-135m"
aliases = ["demo"]
source = "{path}"
defaults = {{ temperature = 0.0 }}
[[pool]]
name = "default"
model = "smollm2-135m"
[pool.options]
slots = 2
context_tokens = 1024
"""


class Whole:
    """A running Tidegate, and where it is reached."""

    def __init__(self, site, up):
        self.site, self.up = site, up
        urls = site.urls()
        self.api, self.chat = urls["api"], urls["chat"]
        self.root = self.api.removesuffix("/v1")


@pytest.fixture(scope="module")
def whole():
    site = Site()
    try:
        site.settings(MODEL.format(path=demo_model_path()), chat=True)
        yield Whole(site, site.up().ready())
    finally:
        site.close()
