"""What people point at Tidegate: the `openai` package, sync and async, and curl, against a real model."""

import asyncio
import json
import shutil
import subprocess

import httpx
import openai
import pytest

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing: apt-get install curl")

QUESTION = [{"role": "user", "content": "Name one colour of the rainbow."}]


@pytest.fixture
def client(whole):
    with openai.OpenAI(base_url=whole.api, api_key="not needed", max_retries=0) as client:
        yield client


def test_the_model_is_listed_by_its_serving_name_and_never_by_its_path(client, whole):
    models = client.models.list().data
    assert [model.id for model in models] == ["smollm2-135m"]
    assert "/" not in models[0].id
    assert client.models.retrieve("demo").id == "smollm2-135m"
    assert str(whole.site.folder) not in json.dumps(models[0].model_dump())


def test_a_json_answer_is_whole_and_counted(client):
    answer = client.chat.completions.create(model="smollm2-135m", messages=QUESTION, max_tokens=12, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in {"stop", "length"}
    assert 1 <= answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == "smollm2-135m"


def test_a_stream_says_what_the_json_answer_says(client):
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 12, "temperature": 0, "seed": 1}
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == client.chat.completions.create(**asked).choices[0].message.content
    assert chunks[-1].usage.completion_tokens <= 12
    assert len(chunks) > 3


def test_text_completions_work_and_stop_where_told(client):
    answer = client.completions.create(
        model="demo", prompt="1, 2, 3, 4, 5, 6,", max_tokens=12, temperature=0, stop=["9"]
    )
    assert answer.object == "text_completion"
    assert "7" in answer.choices[0].text
    assert "9" not in answer.choices[0].text


async def test_the_async_client_streams_several_answers_at_once(whole):
    async with openai.AsyncOpenAI(base_url=whole.api, api_key="x", max_retries=0) as client:

        async def ask():
            stream = await client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=8, stream=True)
            return [chunk async for chunk in stream]

        answers = await asyncio.gather(*(ask() for _ in range(4)))
    assert len({answer[0].id for answer in answers}) == 4
    assert all(answer[-1].choices[0].finish_reason for answer in answers)


def test_a_json_schema_is_kept_to(client):
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer"}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        max_tokens=64,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )
    said = json.loads(answer.choices[0].message.content)
    assert said["colour"] in {"red", "green", "blue"}
    assert isinstance(said["count"], int)


def test_embeddings_are_refused_in_words_where_there_is_no_embedder(client):
    with pytest.raises(openai.BadRequestError, match="does not make embeddings") as caught:
        client.embeddings.create(model="demo", input="hello")
    assert caught.value.code == "embeddings_not_supported"
    assert caught.value.param == "model"


def test_an_unknown_model_is_told_the_valid_ones(client):
    with pytest.raises(openai.NotFoundError, match="smollm2-135m, demo") as caught:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def tokens(whole, path, **body):
    answer = httpx.post(f"{whole.root}/{path}", json={"model": "demo", **body}, trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tokens_are_counted_as_the_engine_counts_them(client, whole):
    counted = tokens(whole, "tokenize", messages=QUESTION)
    answer = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=1)
    assert counted["count"] == answer.usage.prompt_tokens
    assert counted["max_model_len"] == 1024
    text = tokens(whole, "detokenize", tokens=counted["tokens"])["prompt"]
    assert "Name one colour of the rainbow." in text


def test_chinese_and_emoji_go_in_and_come_back(whole):
    asked = "你好，世界 👩‍🚀"
    counted = tokens(whole, "tokenize", prompt=asked)
    assert tokens(whole, "detokenize", tokens=counted["tokens"])["prompt"].strip() == asked


@needs_curl
def test_the_curl_line_that_was_printed_works_when_pasted(whole):
    line = next(line.strip() for line in whole.up.text().splitlines() if line.strip().startswith("curl "))
    done = subprocess.run(["sh", "-c", f"{line} --silent"], check=True, capture_output=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


@needs_curl
def test_curl_sees_the_stream_event_by_event(whole):
    body = json.dumps({"model": "demo", "stream": True, "max_tokens": 6, "messages": QUESTION})
    command = ["curl", "--silent", "--no-buffer", f"{whole.api}/chat/completions"]
    command += ["-H", "content-type: application/json", "-d", body]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    events = done.stdout.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert len(events) >= 8
    assert all(event.startswith("data: ") for event in events[:-1])
