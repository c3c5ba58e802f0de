"""Questions to begin with."""

DEMO_MODEL = "smollm2-135m"
"""The serving name of the demonstration model, which speaks English only."""

ENGLISH = (
    ("Explain an idea", "Explain in simple words why the sky is blue."),
    ("Write a message", "Write a short and friendly message that thanks a colleague for their help."),
    ("Plan a day", "Give me a plan for one day in a city that I visit for the first time."),
    ("Tell a story", "Tell me a very short story about a lighthouse keeper."),
)
CHINESE = (
    ("解释一个概念", "请用简单的话解释：天空为什么是蓝色的？"),
    ("写一条消息", "请写一条简短、友好的消息，感谢同事的帮助。"),
    ("安排一天", "我第一次去北京，请帮我安排一天的行程。"),
    ("讲个故事", "请讲一个关于守灯塔的人的小故事。"),
)


def starters(language: str, model: str) -> list[tuple[str, str]]:
    """Label and question of each, in the page's language; the questions in one that the model speaks."""
    labels = CHINESE if language.lower().startswith("zh") else ENGLISH
    questions = ENGLISH if model == DEMO_MODEL else labels
    return [(label, question) for (label, _), (_, question) in zip(labels, questions, strict=True)]


def invitation(language: str, model: str, general: str) -> str:
    """What stands in the empty question field; `general` while no model is known."""
    if not model:
        return general
    if language.lower().startswith("zh"):
        return f"向 {model} 提问" + ("（演示模型，只会英文）" if model == DEMO_MODEL else "")
    return f"Ask {model}" + (" (a demo model; it speaks English only)" if model == DEMO_MODEL else "")


def footnote(language: str, model: str, warning: str) -> str:
    """The line below the question field: which model answers, and `warning`."""
    if model != DEMO_MODEL:
        return f"{model} · {warning}" if model else warning
    chinese = language.lower().startswith("zh")
    return f"{model} · " + (
        "很小的演示模型，只会英文。" if chinese else "A very small demo model; it speaks English only."
    )
