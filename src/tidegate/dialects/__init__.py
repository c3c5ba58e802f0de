"""What differs between engines, as data and pure functions.

A `Dialect` says which paths an engine may be asked, which JSON requests go to it as streams, which fields a client may
not send it, and how its tokenizer is asked.
"""

from tidegate.dialects.base import Call, Dialect, Steps
from tidegate.dialects.llamacpp import LLAMACPP
from tidegate.dialects.openai import OPENAI
from tidegate.dialects.vllm import VLLM
from tidegate.types import DialectName

__all__ = ["DIALECTS", "LLAMACPP", "OPENAI", "VLLM", "Call", "Dialect", "Steps"]

DIALECTS = {DialectName.LLAMACPP: LLAMACPP, DialectName.VLLM: VLLM, DialectName.OPENAI: OPENAI}
