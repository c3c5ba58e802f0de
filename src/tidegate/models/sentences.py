"""The one sentence that says which model answers and why, in Chinese and English."""

from typing import Literal

Language = Literal["en", "zh"]
Reason = Literal["asked", "here", "fetched", "no hub"]

WHY: dict[Reason, dict[Language, str]] = {
    "asked": {"en": "{model} answers, as you asked", "zh": "由 {model} 回答：这是您指定的模型"},
    "here": {
        "en": "{model} answers, because it is in the data folder",
        "zh": "由 {model} 回答：它已在数据文件夹中",
    },
    "fetched": {
        "en": "{model} answers, because it is the reference model and {where} had it",
        "zh": "由 {model} 回答：它是参考模型，已从 {where} 下载",
    },
    "no hub": {
        "en": "{model}, a small demonstration model, answers, because ERNIE-4.5-0.3B could not be had from a hub ({where})",
        "zh": "由小型演示模型 {model} 回答：未能从模型站获取 ERNIE-4.5-0.3B（{where}）",
    },
}
ENGLISH_ONLY: dict[Language, str] = {"en": "; it speaks English only.", "zh": "；它只会英语。"}
END: dict[Language, str] = {"en": ".", "zh": "。"}


def which_answers(
    model: str, reason: Reason, language: Language, *, where: str = "", english_only: bool = False
) -> str:
    """`ERNIE-4.5-0.3B (Q8_0) answers, because it is in the data folder.`"""
    sentence = WHY[reason][language].format(model=model, where=where)
    return sentence + (ENGLISH_ONLY if english_only else END)[language]
