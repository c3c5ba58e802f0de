"""Which class a request is of. Pure: from what is known of the request to a name."""

import sys
from collections.abc import Sequence

from tidegate.gateway.quotas import BYTES_PER_TOKEN
from tidegate.types import ClassView, RuleView


class Classifier:
    """The classes there are, and the rules by which a request gets one: the first that matches holds."""

    def __init__(self, classes: Sequence[ClassView], rules: Sequence[RuleView], default: str = "standard") -> None:
        """`default` is the class of what no rule matches, and of what asks for a class that it may not have."""
        self.classes = {one.name: one for one in classes}
        self.default = self.classes.get(default) or next(iter(self.classes.values()))
        self._rules = tuple(rules)
        self._plain = tuple(rule for rule in rules if rule.request_type is None)
        bounds = [rule.prompt_tokens_from for rule in self._plain if _only_by_size(rule)]
        simple = len(bounds) == len(self._plain)
        self.plain_bytes = (
            min((BYTES_PER_TOKEN * (bound or 0) for bound in bounds), default=sys.maxsize) if simple else 0
        )
        """Requests that ask for no class, and are shorter, are of the default one: no rule has to be looked at."""
        self.asks_tokens = any(rule.max_tokens_from is not None for rule in rules)
        """Whether a rule looks at `max_tokens`."""

    def pick(
        self,
        request_type: str,
        allowed: frozenset[str] | None,
        *,
        stream: bool,
        tenant: str,
        model: str,
        path: str,
        prompt_tokens: int,
        max_tokens: int,
    ) -> ClassView:
        """The class of a request. `request_type` is what its header says, in lower case; empty for none.

        `allowed` are the classes that its key may ask for, None for all. 0 `max_tokens`: it does not say.
        """
        for rule in self._rules if request_type else self._plain:
            if (
                (rule.request_type is None or rule.request_type == request_type)
                and (rule.prompt_tokens_from is None or prompt_tokens >= rule.prompt_tokens_from)
                and (rule.max_tokens_from is None or max_tokens >= rule.max_tokens_from)
                and (rule.stream is None or rule.stream == stream)
                and (rule.tenant is None or rule.tenant == tenant)
                and (rule.model is None or rule.model == model)
                and (rule.path is None or rule.path == path)
            ):
                found = self.classes.get(rule.klass)
                if found is None:
                    continue
                asked = rule.request_type is not None
                return found if not asked or allowed is None or found.name in allowed else self.default
        return self.default


def _only_by_size(rule: RuleView) -> bool:
    """Whether nothing but the size of the prompt decides."""
    others = (rule.stream, rule.tenant, rule.model, rule.path, rule.max_tokens_from)
    return rule.prompt_tokens_from is not None and all(one is None for one in others)
