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


def footnote(language: str, model: str, warning: str) -> str:
    """The line below the question's field: which model answers, and `warning`."""
    if model != DEMO_MODEL:
        return f"{model} · {warning}" if model else warning
    chinese = language.lower().startswith("zh")
    return f"{model} · " + (
        "很小的演示模型，只会英文。" if chinese else "A very small demo model that speaks English only."
    )
