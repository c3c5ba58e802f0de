"""The chat page in a real browser, against a gateway whose answers are written here."""

import hashlib
import json
import re
import time

import pytest
from playwright.sync_api import expect

from apps.page_process import page_process
from apps.scripted import Scripted, running
from browser import chromium

WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One page and one gateway for the tests of this module that need nothing special of them."""
    with running(Scripted()) as gateway, page_process(tmp_path_factory.mktemp("chat"), gateway.url) as page:
        yield gateway, page


@pytest.fixture
def gateway(served):
    scripted, _ = served
    fresh = Scripted()
    fresh.url = scripted.url
    scripted.__dict__.update(fresh.__dict__)
    return scripted


@pytest.fixture
def tab(served, gateway, browser):
    """A new browser profile with the page open; a request to anywhere else is recorded in `tab.outside`."""
    yield from open_tab(browser, served[1].url)


def open_tab(browser, url, **options):
    options.setdefault("locale", "en-US")
    with browser.new_context(**options) as context:
        tab = context.new_page()
        tab.set_default_timeout(WAIT_MS)
        tab.outside, tab.faults = [], []
        tab.on("request", lambda request: None if request.url.startswith(url) else tab.outside.append(request.url))
        tab.on("pageerror", lambda error: tab.faults.append(str(error)))
        tab.on("console", lambda said: tab.faults.append(said.text) if said.type == "error" else None)
        tab.goto(url)
        yield tab


def ask(tab, question):
    tab.locator("#chat-input").fill(question)
    tab.locator("#chat-submit").click()


def answers(tab):
    return tab.locator(".ai-message .message-content")


def finished(tab):
    expect(tab.locator("#stop-button")).to_have_count(0, timeout=WAIT_MS)


def until(condition, what):
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def test_the_page_loads_without_a_request_to_anywhere_else(tab, served):
    expect(tab.locator("#chat-input")).to_be_visible()
    tab.wait_for_load_state("networkidle")
    assert tab.outside == []
    assert tab.faults == []
    assert tab.title() == "Tidegate"


def test_the_answer_grows_and_the_model_is_named(tab, gateway):
    gateway.pieces, gateway.pause_s = [f"word{index} " for index in range(40)], 0.05
    expect(tab.locator("#chat-input")).to_have_attribute("placeholder", re.compile(gateway.model))
    ask(tab, "Count.")
    lengths = set()
    expect(answers(tab)).to_contain_text("word3")
    while tab.locator("#stop-button").count():
        lengths.add(len(answers(tab).inner_text()))
    expect(answers(tab)).to_contain_text("word39")
    assert len(lengths) >= 3
    expect(tab.locator(".watermark")).to_contain_text(gateway.model)
    assert gateway.asked == [[{"role": "user", "content": "Count."}]]


def test_stop_closes_the_stream_keeps_the_text_and_the_next_question_works(tab, gateway):
    gateway.pieces, gateway.pause_s = [f"word{index} " for index in range(2000)], 0.02
    ask(tab, "Count on.")
    expect(answers(tab)).to_contain_text("word5")
    tab.locator("#stop-button").click()
    until(lambda: gateway.closed, "the stream is closed")
    finished(tab)
    sent = gateway.sent
    assert sent < 500
    written = answers(tab).inner_text()
    assert "word5" in written
    assert "manually" not in tab.locator("body").inner_text()
    gateway.pieces, gateway.pause_s = ["Fine."], 0.0
    ask(tab, "And now?")
    expect(answers(tab).last).to_have_text("Fine.")
    assert gateway.sent == 1
    assert answers(tab).first.inner_text().strip() == written.strip()
    question, partial, following = gateway.asked[-1]
    assert question == {"role": "user", "content": "Count on."}
    assert partial["role"] == "assistant"
    assert partial["content"].strip() == written.strip()
    assert following == {"role": "user", "content": "And now?"}


def test_chinese_and_emoji_are_shown_as_they_came(tab, gateway):
    text = "你好，世界！👩‍🚀🇨🇳 ½ 𠮷"
    gateway.pieces = list(text)
    ask(tab, "说点什么 🙂")
    expect(answers(tab)).to_have_text(text)
    assert gateway.asked[-1][-1]["content"] == "说点什么 🙂"


def test_html_is_text_words_after_colons_stay_and_images_from_outside_are_not_loaded(tab, gateway):
    gateway.pieces = [
        "<b>bold</b> <img src=x onerror=alert(1)> a:b 时间:下午 ::note :::warning\n\n",
        "[link](javascript:alert(1)) ![pic](http://192.0.2.1/pixel.png)",
    ]
    failed = []
    tab.on("requestfailed", lambda request: failed.append((request.url, request.failure)))
    ask(tab, "Show me.")
    finished(tab)
    shown = answers(tab)
    expect(shown).to_contain_text("<b>bold</b> <img src=x onerror=alert(1)> a:b 时间:下午 ::note :::warning")
    assert shown.locator("b").count() == 0
    assert not (shown.locator("a").first.get_attribute("href") or "").startswith("javascript")
    until(lambda: failed, "the image is refused")
    assert {reason for url, reason in failed if "pixel" in url} == {"csp"}


def test_a_restarting_model_is_told_waited_for_and_the_question_answered(tab, gateway):
    gateway.status, gateway.retry_after = 503, 1
    ask(tab, "Are you there?")
    expect(answers(tab)).to_contain_text("restarting or loading")
    expect(answers(tab)).to_contain_text("Trying again in 1 s")
    gateway.status = 200
    expect(answers(tab)).to_have_text("Hello there.")
    finished(tab)
    assert len(gateway.asked) == 1


def test_an_answer_that_breaks_in_the_middle_is_asked_for_again(tab, gateway):
    gateway.pieces, gateway.break_after, gateway.pause_s = ["Hello", " there", "."], 2, 0.1
    ask(tab, "Hello?")
    expect(answers(tab)).to_contain_text("stopped in the middle")
    expect(answers(tab)).to_contain_text("Hello there")
    expect(answers(tab)).to_have_text("Hello there.")
    assert len(gateway.asked) == 2


def test_stop_while_waiting_ends_the_waiting(tab, gateway):
    gateway.status, gateway.retry_after = 503, 30
    ask(tab, "Are you there?")
    expect(answers(tab)).to_contain_text("Trying again in")
    tab.locator("#stop-button").click()
    expect(answers(tab)).to_have_text("Stopped.")
    finished(tab)
    gateway.status = 200
    ask(tab, "And now?")
    expect(answers(tab).last).to_have_text("Hello there.")
    assert gateway.asked == [[{"role": "user", "content": "And now?"}]]


def test_too_long_a_question_is_said_plainly_and_in_chinese_to_a_chinese_browser(served, gateway, browser):
    gateway.status, gateway.error = 400, {"code": "context_length_exceeded"}
    for tab in open_tab(browser, served[1].url, locale="zh-CN"):
        ask(tab, "很长的问题")
        expect(answers(tab)).to_contain_text("内容太长")
        gateway.status, gateway.error = 429, {}
        gateway.retry_after = 600
        ask(tab, "再问")
        expect(answers(tab).last).to_contain_text("提问的人太多了，请在 600 秒后再试")
        gateway.status, gateway.pieces = 200, []
        ask(tab, "空")
        expect(answers(tab).last).to_contain_text("模型没有给出任何内容")


def test_an_edited_question_takes_the_place_of_the_old_one(tab, gateway):
    ask(tab, "First?")
    expect(answers(tab)).to_have_text("Hello there.")
    finished(tab)
    tab.locator(".step", has_text="First?").first.hover()
    tab.locator(".edit-message").first.click()
    tab.locator("#edit-chat-input").fill("Second?")
    tab.locator("button.confirm-edit").click()
    until(lambda: len(gateway.asked) == 2, "the edited question is asked")
    assert gateway.asked[-1] == [{"role": "user", "content": "Second?"}]


def test_two_people_see_nothing_of_each_other(tab, gateway, served, browser):
    ask(tab, "My secret is 42.")
    expect(answers(tab)).to_have_text("Hello there.")
    for other in open_tab(browser, served[1].url):
        ask(other, "What is the secret?")
        expect(answers(other)).to_have_text("Hello there.")
        assert "42" not in other.locator("body").inner_text()
    assert gateway.asked[-1] == [{"role": "user", "content": "What is the secret?"}]


def test_when_the_browser_leaves_its_answer_ends(tab, gateway):
    gateway.pieces, gateway.pause_s = ["word "] * 2000, 0.02
    ask(tab, "Count on.")
    expect(answers(tab)).to_contain_text("word")
    tab.close()
    until(lambda: gateway.closed, "the stream is closed")
    assert gateway.sent < 1000


def test_the_gateway_is_away_and_comes_back(tmp_path, browser):
    gateway = Scripted()
    with running(gateway):
        pass
    with page_process(tmp_path, gateway.url) as page:
        for tab in open_tab(browser, page.url):
            ask(tab, "Hello?")
            expect(answers(tab)).to_contain_text("The gateway does not answer. Trying again in")
            with running(gateway):
                expect(answers(tab)).to_have_text("Hello there.")


def test_it_ends_quickly_with_a_page_open_and_writes_nothing_where_it_was_started(tmp_path, browser):
    with running(Scripted()) as gateway, page_process(tmp_path, gateway.url) as page:
        gateway.pieces, gateway.pause_s = ["word "] * 2000, 0.02
        for tab in open_tab(browser, page.url):
            ask(tab, "Count on.")
            expect(answers(tab)).to_contain_text("word")
            page.process.terminate()
            assert page.process.wait(10) == 0
        assert list(page.cwd.iterdir()) == []
        assert not (page.data / "chat" / ".files").exists()
        assert [event["event"] for event in page.events()] == ["chat page ready", "chat page ended"]


def test_with_keys_only_who_has_one_comes_in_and_only_as_long_as_it_is_valid(tmp_path, browser):
    key, keys = "sk-tg-" + "k" * 43, tmp_path / "keys.json"
    keys.write_text(json.dumps([hashlib.sha256(b"another").hexdigest(), hashlib.sha256(key.encode()).hexdigest()]))
    with (
        running(Scripted()) as gateway,
        page_process(tmp_path, gateway.url, "--sign-in-keys-file", str(keys)) as page,
    ):
        assert (page.data / "chat" / "auth.secret").stat().st_mode & 0o777 == 0o600
        for tab in open_tab(browser, page.url):
            tab.wait_for_url("**/login")
            expect(tab.get_by_text("API key")).to_be_visible()
            tab.locator("#email").fill("Li Lei")
            tab.locator("#password").fill("sk-tg-wrong")
            tab.get_by_role("button", name="Sign In").click()
            expect(tab.get_by_text("This key is not valid")).to_be_visible()
            tab.locator("#password").fill(key)
            tab.get_by_role("button", name="Sign In").click()
            ask(tab, "Hello?")
            expect(answers(tab)).to_have_text("Hello there.")
            assert tab.outside == []
            keys.write_text("[]")
            ask(tab, "Still there?")
            expect(answers(tab).last).to_contain_text("no longer valid")
        assert len(gateway.asked) == 1
