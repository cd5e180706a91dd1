import json
import random
import re
import subprocess
import sys
import threading
import types
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from paper_repro.metrics.grammar import PaperRules, flesch_kincaid_grade, grammar_quality
from paper_repro.metrics.grammar_checkers import Harper, LanguageTool, MissingCheckerError
from paper_repro.tests.support import golden


def readable(_text):
    return 10.0


def unreadable(_text):
    return 5.0


@pytest.mark.parametrize("path", golden.files("nrgpt", "metrics.json"))
def test_golden_nrgpt_grammar(path):
    cases = golden.document(path)["cases"]
    assert cases
    for case in cases:
        quality = grammar_quality(case["text"], PaperRules(), readable)
        assert quality.num_words == case["word_count"], case["name"]
        assert dict(quality.by_category) == case["errors_by_category"], case["name"]
        assert sorted(quality.inspection.misspelt) == case["unknown_words"], case["name"]
        # a sum of up to some hundred severities in another order, over tens of words
        assert quality.score == pytest.approx(case["gqs_fk10"], abs=1e-13), case["name"]
        hard = grammar_quality(case["text"], PaperRules(), unreadable)
        assert hard.score == pytest.approx(case["gqs_fk5"], abs=1e-13), case["name"]


def categories(text):
    return dict(grammar_quality(text, PaperRules(), readable).by_category)


START = {"Capitalization": 1}
"""The first letter of any text counts as an error, a quirk of the authors' rules."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("She are here", {"Subject-Verb Agreement": 1}),
        ("The shell are here", {}),
        ("We  is\nhere", {"Subject-Verb Agreement": 1}),
        ("There is books", {"Subject-Verb Agreement": 1}),
        ("There is one book", {}),
        ("There are many", {"Subject-Verb Agreement": 1}),
        ("There are books", {}),
        ("There are books here", {"Subject-Verb Agreement": 1}),
        ("Take a egg", {"Articles": 1}),
        ("Take an EGG", {}),
        ("Take an bear", {"Articles": 1}),
        ("Take a 7", {"Articles": 1}),
        ("Take the 22nd", {"Articles": 1}),
        ("Myself and others", {"Pronouns": 1}),
        ("Between you and i", {"Pronouns": 1}),
        ("See him and I", {"Pronouns": 1}),
        ("Its going", {"Pronouns": 1}),
        ("Its going its way", {}),
        ("Your doing it", {"Pronouns": 1}),
        ("Know whos.", {"Pronouns": 1}),
        ("Know whos there", {}),
        ("He did walked", {"Tense": 1}),
        ("They have going", {"Tense": 1}),
        ("One. Two. three", {"Capitalization": 3}),
        ("So may I go", {"Capitalization": 3}),
        ("Be off of it", {"Prepositions": 1}),
        ("You would of", {"Prepositions": 1}),
        ("Affect is used as a noun", {"Word Choice": 1}),
        ("As a noun, affect", {}),
        ("Then in comparisons", {"Word Choice": 1}),
        ("Loose some weight", {"Word Choice": 1}),
        ("Accept it for now", {"Word Choice": 1}),
        ("Wait for it...", {"Punctuation": 1}),
        ("One.two , three,,,four??!!", {"Punctuation": 5}),
        ("The THE end", {"Double Words": 1}),
        ("The the the end", {"Double Words": 1}),
        ("Going home", {"Sentence Structure": 1}),
        ("Because of walking", {"Sentence Structure": 1}),
        ("The reason is because", {"Sentence Structure": 1}),
    ],
)
def test_rules_of_the_paper_with_their_quirks(text, found):
    assert categories(text) == START | found


def test_score_by_hand():
    quality = grammar_quality("She are blorfing thee thee", PaperRules(), unreadable)
    assert (quality.num_words, quality.inspection.misspelt) == (5, {"blorfing"})
    # severities: agreement 0.9, doubled word 0.8, sentence start 0.4
    assert quality.score == pytest.approx(0.5 * (1 - 2.1 / 5) + 0.3 * (1 - 1 / 5) + 0.2 * 0.7, abs=1e-15)


def test_parts_stop_at_zero():
    quality = grammar_quality("xqz. zzq. qqx.", PaperRules(), unreadable)
    assert quality.score == pytest.approx(0.5 * (1 - 1.2 / 3) + 0.14, abs=1e-15)
    assert grammar_quality("a 1,,..,,..,,", PaperRules(), unreadable).score == pytest.approx(0.44, abs=1e-15)


@pytest.mark.parametrize(("grade", "part"), [(7.99, 0.14), (8, 0.2), (12, 0.2), (12.01, 0.14), (-3, 0.14)])
def test_readability_is_one_step(grade, part):
    quality = grammar_quality("The end is near", PaperRules(), lambda _text: grade)
    assert quality.score == pytest.approx(0.5 * (1 - 0.4 / 4) + 0.3 + part, abs=1e-15)


def test_the_score_hardly_sees_grammar():
    text = "The committee discussed the proposal for several hours before they reached a decision about the new road. "
    words = (text * 5).split()
    random.Random(0).shuffle(words)
    ordered, shuffled = (grammar_quality(some, PaperRules(), readable).score for some in (text * 5, " ".join(words)))
    assert 0.9 < shuffled < ordered < 1


def test_grade_by_hand():
    assert flesch_kincaid_grade("The cat sat. The dog ran!") == pytest.approx(0.39 * 3 + 11.8 - 15.59, abs=1e-12)
    # syllables 1 2 1 4 = 8
    grade = flesch_kincaid_grade("These people like information")
    assert grade == pytest.approx(0.39 * 4 + 11.8 * 8 / 4 - 15.59, abs=1e-12)
    assert flesch_kincaid_grade("It's late, isn't it...") == pytest.approx(0.39 * 4 + 11.8 - 15.59, abs=1e-12)
    assert flesch_kincaid_grade("It's late, isn't it...") == flesch_kincaid_grade("It’s late, isn’t it.")


@pytest.mark.parametrize(
    ("word", "syllables"),
    [("time", 1), ("walked", 1), ("wanted", 2), ("table", 2), ("agree", 2), ("the", 1), ("rhythm", 1), ("energy", 3)],
)
def test_syllables(word, syllables):
    assert flesch_kincaid_grade(word) == pytest.approx(0.39 + 11.8 * syllables - 15.59, abs=1e-12)


class LanguageToolDouble(BaseHTTPRequestHandler):
    """Two addresses of LanguageTool's HTTP interface, with one rule and one word of its own."""

    def do_GET(self):
        self._answer([{"name": "English (US)", "code": "en", "longCode": "en-US"}])

    def do_POST(self):
        text = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["text"][0]
        rules = {"thier": ("misspelling", "TYPOS"), "a apple": ("grammar", "GRAMMAR")}
        matches = [
            {
                "rule": {"id": "X", "issueType": kind, "category": {"id": category}},
                "context": {"text": text, "offset": text.index(found)},
                "replacements": [],
                "message": "",
                "offset": text.index(found),
                "length": len(found),
                "sentence": text,
            }
            for found, (kind, category) in rules.items()
            if found in text
        ]
        self._answer({"matches": matches})

    def _answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


class SomethingElse(LanguageToolDouble):
    content: object = {"hello": "world"}

    def do_GET(self):
        self._answer(self.content)


class Page(SomethingElse):
    def _answer(self, content):
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>not here</html>")


@pytest.fixture
def serve():
    servers = []

    def start(handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_languagetool_server_is_asked_and_scored(serve):
    url, _ = serve(LanguageToolDouble)
    with closing(LanguageTool(url)) as engine:
        quality = grammar_quality("They ate a apple with thier friends", engine, readable)
    assert dict(quality.by_category) == {"GRAMMAR": 1}
    assert quality.inspection.findings[0].found == "a apple"
    assert quality.inspection.misspelt == {"thier"}
    assert quality.score == pytest.approx(0.5 * (1 - 1 / 7) + 0.3 * (1 - 1 / 7) + 0.2, abs=1e-15)


def test_languagetool_server_that_stops_answering_is_named(serve):
    url, server = serve(LanguageToolDouble)
    with closing(LanguageTool(url)) as engine:
        server.shutdown()
        server.server_close()
        with pytest.raises(MissingCheckerError, match=f"{url} does not answer.*check the address"):
            engine.inspect("Some text")


def test_languagetool_address_where_nobody_answers(serve):
    url, server = serve(LanguageToolDouble)
    server.shutdown()
    server.server_close()
    with pytest.raises(MissingCheckerError, match=f"{url} does not answer as a LanguageTool server.*or start one with"):
        LanguageTool(url)


class Bytes(SomethingElse):
    def _answer(self, content):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"\xff\xfe language")


@pytest.mark.parametrize("handler", [SomethingElse, Page, Bytes, type("Number", (SomethingElse,), {"content": 3})])
def test_languagetool_address_of_something_else(serve, handler):
    url, _ = serve(handler)
    with pytest.raises(MissingCheckerError, match=f"{url} does not answer as a LanguageTool server"):
        LanguageTool(url)


@pytest.mark.parametrize("url", ["http://:0:0", "http://[", ""])
def test_languagetool_address_that_is_none(url):
    with pytest.raises(MissingCheckerError, match="does not answer as a LanguageTool server"):
        LanguageTool(url)


def test_languagetool_language_that_it_lacks(serve):
    url, _ = serve(LanguageToolDouble)
    with pytest.raises(ValueError, match="language must be one that LanguageTool knows, got 'xx-YY'"):
        LanguageTool(url, language="xx-YY")


def local_failures():
    import requests
    from language_tool_python.exceptions import JavaError, PathError, ServerError

    return [
        (requests.exceptions.ConnectionError("no route"), "could not be downloaded"),
        (TimeoutError("slow"), "could not be downloaded"),
        (ModuleNotFoundError("No java install detected."), "no Java was found"),
        (FileNotFoundError("no jar"), "folder holds no installation: remove it"),
        (SystemError("Detected java 8.0"), "too old"),
        (SystemExit("Could not parse Java version"), "does not tell its version"),
        (subprocess.CalledProcessError(1, "java"), "does not tell its version"),
        (ServerError("exited early"), "server did not start"),
        (PathError("bad checksum"), "server did not start"),
        (JavaError("no java"), "server did not start"),
    ]


@pytest.mark.parametrize(("failure", "cause"), local_failures(), ids=lambda value: type(value).__name__)
def test_every_way_in_which_a_local_languagetool_fails_is_answered(monkeypatch, failure, cause):
    import language_tool_python

    def fail(*_args, **_options):
        raise failure

    monkeypatch.setattr(language_tool_python, "LanguageTool", fail)
    with pytest.raises(MissingCheckerError, match=rf"{cause}.*Java 17 or newer.*give url="):
        LanguageTool()


def test_no_java_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LTP_PATH", str(tmp_path))
    with pytest.raises(MissingCheckerError, match="no Java was found"):
        LanguageTool()


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_old_java_on_the_path(monkeypatch, tmp_path, version):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCheckerError, match=r"too old \(SystemError.*give url="):
        LanguageTool()


def test_a_languagetool_that_was_half_unpacked_is_named(monkeypatch, tmp_path):
    """Its jar is there, and Java ends with it, because the libraries beside it are not."""
    from language_tool_python.download_lt import LTP_DOWNLOAD_VERSION

    java = tmp_path / "java"
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit\nexit 1\n')
    java.chmod(0o755)
    jar = tmp_path / "downloads" / f"LanguageTool-{LTP_DOWNLOAD_VERSION}" / "languagetool-server.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LTP_PATH", str(tmp_path / "downloads"))
    monkeypatch.setattr("random.sample", lambda *_: [65535])  # the client tries all of 918 ports
    remove = re.escape(f"if {tmp_path}/downloads/LanguageTool-* is not whole, remove it")
    with pytest.raises(MissingCheckerError, match=f"server did not start; {remove}.*exited early.*Java 17 or newer"):
        LanguageTool()


def test_harper_finds_real_errors():
    pytest.importorskip("harper", reason="pip install harper-py")
    quality = grammar_quality("He are eating a apple with thier friends.", Harper(), readable)
    assert "thier" in quality.inspection.misspelt
    assert {"are", "a"} <= {finding.found for finding in quality.inspection.findings}
    assert grammar_quality("She is eating an apple with her friends.", Harper(), readable).score == 1


def test_harper_sorts_spelling_from_grammar(monkeypatch):
    def lint(text, language):
        assert (text, language) == ("A Thier text", "plaintext")
        return [
            types.SimpleNamespace(lint_kind="Spelling", problem_text="Thier"),
            types.SimpleNamespace(lint_kind="WordChoice", problem_text="text"),
        ]

    module = types.SimpleNamespace(Linter=lambda: types.SimpleNamespace(lint=lint))
    monkeypatch.setitem(sys.modules, "harper", module)
    quality = grammar_quality("A Thier text", Harper(), readable)
    assert (dict(quality.by_category), quality.inspection.misspelt) == ({"WordChoice": 1}, {"thier"})
    assert quality.score == pytest.approx(0.8 * 2 / 3 + 0.2, abs=1e-15)


@pytest.mark.parametrize("module", [None, types.ModuleType("harper")])
def test_missing_harper_is_answered_with_the_command(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "harper", module)
    with pytest.raises(MissingCheckerError, match="pip install harper-py"):
        Harper()


def test_each_engine_has_a_column_of_its_own():
    headings = [engine.quantity.heading for engine in (PaperRules, LanguageTool, Harper)]
    assert headings == ["GQS (paper) ↑", "GQS (LanguageTool) ↑", "GQS (Harper) ↑"]


@pytest.mark.parametrize(("text", "words", "characters"), [("", 0, 0), (" \n\t", 0, 0), ("hi", 1, 2), (" a ", 1, 1)])
def test_texts_that_are_too_short_are_refused_by_name(text, words, characters):
    with pytest.raises(ValueError, match=rf"GQS \(paper\) of a text of {words} words and {characters} characters"):
        grammar_quality(text, PaperRules(), readable)


def test_one_word_is_scored():
    assert grammar_quality("Word", PaperRules(), readable).score == pytest.approx(0.5 * 0.6 + 0.5, abs=1e-15)


def test_text_without_letters_has_no_grade():
    with pytest.raises(ValueError, match=r"'123 456' has no letters, expected words"):
        grammar_quality("123 456", PaperRules())


@pytest.mark.parametrize("wrong", [None, b"some bytes", ["a", "list"], 7])
def test_what_is_no_text_is_refused(wrong):
    for call in (flesch_kincaid_grade, PaperRules().inspect, lambda text: grammar_quality(text, PaperRules())):
        with pytest.raises(TypeError, match=f"found {type(wrong).__name__}, expected a text"):
            call(wrong)
