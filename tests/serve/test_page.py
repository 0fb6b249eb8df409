"""The web page in headless Chromium: it loads, streams, stops, and shows text as text."""
import json
import subprocess

import pytest

from browser import Browser, chromium
from served import FAKE, SOURCE, WORK, Server, until

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium: the page is not tested")

ANSWER = "document.querySelector('.message.assistant:last-of-type .bubble > .text').textContent"
FACTS = "document.querySelector('.message.assistant:last-of-type .facts').textContent"


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "profile") as started:
        yield started
        assert started.problems == []


def send(browser, text):
    browser.type("#prompt", text)
    browser.press_enter()


def test_it_streams_and_stops(fake, browser):
    browser.open(fake.url + "/")
    browser.until("document.querySelector('#state').dataset.state === 'ready'")
    assert "4096" in browser.until("document.querySelector('#model').textContent")
    send(browser, "Hello")
    browser.until(f"{ANSWER}.length > 50")
    assert fake.running() == 1
    assert browser.value("!document.querySelector('#stop').hidden")
    browser.screenshot(WORK / "page-streaming.png")
    browser.click("#stop")
    browser.until("document.querySelector('#stop').hidden")
    fake.until_idle()
    assert "stopped" in browser.value(FACTS) and "tokens/s" in browser.value(FACTS)
    assert browser.value("conversation.length") == 2


def test_text_is_text_and_settings_reach_the_server(fake, browser):
    browser.open(fake.url + "/")
    browser.until("document.querySelector('#state').dataset.state === 'ready'")
    browser.type("#max_tokens", "120")
    browser.type("#temperature", "0")
    browser.type("#system", "<b>Be brief.</b>")
    browser.value("document.querySelector('#thinking').value = 'on'")
    send(browser, "<img src=x onerror=alert(1)>")
    browser.until(f"{FACTS}.includes('cut at the most tokens')")
    thought = browser.value("document.querySelector('.thinking .text').textContent")
    assert browser.value("document.querySelectorAll('#messages img, #messages b').length") == 0
    # The curl command asks for the same.
    command = browser.value("document.querySelector('#curl').textContent")
    done = subprocess.run(["bash", "-c", command.replace("curl -N", "curl -sN")],
                          capture_output=True, text=True, check=True)
    chunks = [json.loads(line[6:]) for line in done.stdout.splitlines()
              if line.startswith("data: {")]
    assert thought == "".join(chunk["choices"][0]["delta"].get("reasoning_content") or ""
                              for chunk in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens"] == 120
    # A second turn brings the first along.
    browser.value("document.querySelector('#thinking').value = 'off'")
    send(browser, "More")
    browser.until(f"{FACTS}.includes('120 tokens') && document.querySelector('#stop').hidden")
    assert browser.value("document.querySelectorAll('.message').length") == 4
    assert browser.value("conversation.length") == 4 and len(browser.value(ANSWER)) > 100
    browser.dark(True)
    browser.screenshot(WORK / "page-dark.png")
    browser.click("#clear")
    assert browser.value("document.querySelectorAll('.message').length") == 0


def test_a_question_finds_the_model_that_nobody_asked_for_yet(fake, browser):
    browser.open(fake.url + "/")
    browser.until("document.querySelector('#state').dataset.state === 'ready' && model")
    browser.type("#max_tokens", "5")
    # A changed key forgets the model; the question comes before the page looks again.
    browser.value("document.querySelector('#key').dispatchEvent(new Event('change'))")
    assert browser.value("model") == ""
    send(browser, "Hello")
    browser.until(f"{FACTS}.includes('5 tokens')")


def test_nothing_in_the_page_makes_markup_of_text():
    page = (SOURCE / "src" / "server" / "page.html").read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                 "setHTML", "createContextualFragment", "DOMParser", "http:", "https:"):
        assert word not in page.replace("http://www.w3.org/2000/svg", ""), word


def test_it_shows_loading_load_and_failures(browser):
    with Server(*FAKE, "--fake-load-time", 4, "--fake-step-time", 0.02, wait=False) as server:
        browser.open(server.port_from_log() + "/")
        browser.until("document.querySelector('#state').dataset.state === 'loading'")
        assert browser.value("!document.querySelector('#loading').hidden")
        browser.screenshot(WORK / "page-loading.png")
        browser.until("document.querySelector('#state').dataset.state === 'ready'")
        assert browser.value("document.querySelector('#loading').hidden")
        send(browser, "Hello")
        browser.until("document.querySelector('#running').textContent === '1'")
        browser.until("Number(document.querySelector('#rate-out').textContent) > 0")
        browser.screenshot(WORK / "page-load.png")
        browser.click("#stop")
        server.until_idle()
        browser.value("document.querySelector('#temperature').value = 9")
        send(browser, "Too warm")
        browser.until(f"{FACTS}.includes('temperature')")
        server.signal()
        until(lambda: server.process.poll() is not None, "the server ends")
        browser.until("document.querySelector('#state').dataset.state === 'gone'")
    # The server's 400 and its absence are told to the console too, by Chromium itself.
    browser.problems = [problem for problem in browser.problems
                        if problem.get("source") != "network"]


def test_a_page_under_a_strangers_name_is_refused(fake, tmp_path):
    rule = "--host-resolver-rules=MAP evil.test 127.0.0.1"
    with Browser(tmp_path / "profile", rule, "--disable-features=HttpsUpgrades") as browser:
        browser.open(f"http://evil.test:{fake.port}/")
        assert "--allowed-hosts evil.test" in browser.until("document.body.innerText")
