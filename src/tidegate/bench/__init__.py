"""Load against any OpenAI server, and what it shows: `tidegate bench`.

Pure: `figures arrivals lengths prompts trace slo knee workload wire summary`. Sockets: `probe call driver`. What comes of it:
`results`, told by `text` and `page`.
"""
