"""A person at the chat page, the model behind it real, and the engine killed under them."""

import os
import re
import signal

import pytest
from playwright.sync_api import expect

from browser import chromium

WAIT_MS = 60_000


@pytest.fixture
def tab(whole):
    with chromium() as browser, browser.new_context(locale="en-US") as context:
        tab = context.new_page()
        tab.set_default_timeout(WAIT_MS)
        tab.outside = []
        tab.on("request", lambda request: request.url.startswith(whole.chat) or tab.outside.append(request.url))
        tab.goto(whole.chat)
        yield tab


def ask(tab, question):
    tab.locator("#chat-input").fill(question)
    tab.locator("#chat-submit").click()


def answers(tab):
    return tab.locator(".ai-message .message-content")


def finished(tab):
    expect(tab.locator("#stop-button")).to_have_count(0, timeout=WAIT_MS)


def test_a_person_asks_sees_the_answer_grow_stops_it_and_asks_again(tab):
    ask(tab, "Write a long story about a lighthouse keeper and the sea.")
    expect(answers(tab)).to_have_text(re.compile(r"\S"), timeout=WAIT_MS)
    lengths = set()
    while len(lengths) < 4:
        assert tab.locator("#stop-button").count(), f"it ended after {answers(tab).inner_text()!r}"
        lengths.add(len(answers(tab).inner_text()))
    tab.locator("#stop-button").click()
    finished(tab)
    written = answers(tab).inner_text()
    assert len(written) >= max(lengths) - 1
    ask(tab, "Thank you. What is two plus two?")
    expect(answers(tab)).to_have_count(2, timeout=WAIT_MS)
    expect(answers(tab).last).to_have_text(re.compile(r"\S"), timeout=WAIT_MS)
    finished(tab)
    assert answers(tab).first.inner_text().strip() == written.strip()
    assert tab.outside == []


def test_the_engine_is_killed_the_page_says_so_and_the_question_is_answered_when_it_is_back(tab, whole):
    pid = whole.site.pids()["default-0"]
    os.kill(pid, signal.SIGKILL)
    ask(tab, "Are you still there?")
    expect(answers(tab)).to_contain_text(re.compile("restarting or loading|stopped in the middle"), timeout=WAIT_MS)
    finished(tab)
    expect(answers(tab)).not_to_contain_text("restarting", timeout=WAIT_MS)
    expect(answers(tab)).to_have_text(re.compile(r"\S"))
    whole.site.back(whole.up, "default-0", pid)
