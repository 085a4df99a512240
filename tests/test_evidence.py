"""What is shown of an output is its own; what is missing is said in lines; what was shown can be found again."""

from __future__ import annotations

import base64
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.canonical import canonical_json
from aether_context.errors import PolicyError
from aether_context.evidence import EvidenceRecord, offload, register_extractor, superseded
from aether_context.evidence.passages import Searcher
from aether_context.policy import OffloadSettings
from aether_context.text.decoding import decoded, read_json
from aether_context.text.json_lines import outlined, rendered
from aether_context.text.shorten import lines_view, shorten, shorten_line
from aether_context.tokens import counter_for

COUNTER = counter_for("")
GAP = re.compile(r"\[… lines? (\d+)(?:-(\d+))? …\]")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=12), inner, max_size=6),
    max_leaves=40,
)


def extract_of(text, query="", tokens=300):
    return shorten(lines_view(text), tokens, counter=COUNTER, query=query, names=True)


def log(count, width=60):
    return "\n".join(
        f"2025-01-01 10:{at // 60 % 60:02d}:{at % 60:02d} INFO step {at} {'.' * width}" for at in range(count)
    )


def test_of_many_lines_with_errors_an_extract_has_more_than_the_one_that_is_odd():
    lines = log(1_000).split("\n")
    for at in range(12):
        lines[333 + 20 * at] = f"2025-01-01 ERROR disk {at} is full"
    assert extract_of("\n".join(lines)).text.count("ERROR") > 1


def missing(text):
    return sum(int(two or one) - int(one) + 1 for one, two in GAP.findall(text))


@given(
    st.text(alphabet=st.sampled_from("ab 1_/\nERROR:é中"), max_size=6_000), st.integers(60, 400), st.text(max_size=40)
)
def test_an_extract_is_made_of_the_texts_own_lines_and_counts_what_is_missing(text, budget, query):
    shown = extract_of(text, query, budget)
    if shown.is_whole:
        assert shown.text in (text, lines_view(text).whole)
        return
    lines = set(lines_view(text).lines)
    assert COUNTER.count(shown.text) <= budget
    if shown.kept and not lines_view(text).outline:
        assert all(GAP.fullmatch(line) or line in lines for line in shown.text.split("\n"))
        assert shown.kept + missing(shown.text) == shown.total == len(lines_view(text).lines)


def test_errors_stay_with_the_lines_that_belong_to_them():
    trace = 'Traceback (most recent call last):\n  File "app.py", line 7, in main\n    run()\nValueError: it is closed'
    text = f"{log(900)}\n{trace}\n{log(900)}"
    shown = extract_of(text, "nothing of this", 400)
    assert trace in shown.text
    assert not shown.is_whole


@pytest.mark.parametrize(
    "odd",
    [
        "pod ledger-7 OOMKilled, restart 4",
        "FEHLER Buchung 88 abgelehnt",
        "--- FAIL: TestTransfer",
        "错误 转账 88 被拒绝",
    ],
)
def test_a_line_unlike_the_rest_is_shown_whatever_its_words(odd):
    lines = log(3_000, 9).split("\n")
    lines[1_800:1_800] = [odd]
    assert odd in extract_of("\n".join(lines), "What happened?", 400).text


def test_the_oddest_lines_stand_with_all_that_belong_to_them():
    failure = ["FAIL src/ledger.test.ts", "  ● Ledger › balance after transfer", "    Expected: 70", "    Received: 68"]
    failure += [
        f"      {at} |   book.transfer({word * 5})" for at, word in enumerate(("from", "into", "thirty", "for"))
    ]
    failure += ["      at Object.<anonymous> (src/ledger.test.ts:41:24)"]
    lines = [f"PASS src/{area}{at}.test.ts" for at in range(1_500) for area in ("billing", "stock")]
    lines[1_800:1_800] = failure
    shown = extract_of("\n".join([*lines, "Suites: 1 wrong, 3000 right"]), "", 540)
    assert "\n".join(failure) in shown.text


def test_every_file_of_a_diff_is_named():
    parts = [f"diff --git a/m{at}.py b/m{at}.py\n" + f"-old {at}\n+new {at}\n" * 90 for at in range(25)]
    shown = extract_of("\n".join(parts), "", 800)
    assert [at for at in range(25) if f"/m{at}.py" not in f"{shown.text}, {shown.names}"] == []


def test_a_row_stands_with_the_names_of_its_columns_and_comes_before_names_of_others():
    rows = [{"sku": f"{at:07d}", "price": at * 3 % 71, "name": f"can {at}", "big": 10**18 + at} for at in range(1_000)]
    rows[613]["name"] = "toner XQ-77"
    header, body = " | ".join(rows[0]), [" | ".join(map(str, row.values())) for row in rows]
    for text in (json.dumps(rows), "\n".join(["Parts", "", header, "---|---|---|---", *body])):
        shown = extract_of(text, "What does the toner XQ-77 cost?", 260).text
        assert "XQ-77" in shown
        assert "price" in shown


BLOCKS = {
    "XML": "<order id='{at}'>\n  <of>\n    <name>{name}</name>\n  </of>\n  <total>{amount}</total>\n</order>",
    "YAML": "- name: {name}\n  deploy:\n    kind: pair\n    limits:\n      memory: {amount}",
    "an INI file": "[{name}]\nkind = pair\nport = {amount}\n",
    "a calendar": "BEGIN:VEVENT\nUID:{at}@cal\nDTSTART:{amount}\nSUMMARY:{name}\nEND:VEVENT",
}


@pytest.mark.parametrize("form", BLOCKS)
@pytest.mark.parametrize("tokens", [200, 400])
def test_a_name_that_is_looked_for_stands_with_the_lines_around_it(form, tokens):
    draw = random.Random(3)
    rows = [{"name": f"{draw.choice('abcde')}-{at}", "at": at, "amount": draw.randrange(100, 900)} for at in range(500)]
    rows[311] |= {"name": "Ottilie", "amount": 4711}
    text = "\n".join(BLOCKS[form].format(**row) for row in rows)
    assert "4711" in extract_of(text, "What is there for Ottilie?", tokens).text


def test_a_change_that_is_looked_for_stands_with_the_name_of_its_file():
    draw, diff = random.Random(3), []
    for at in range(90):
        diff += [f"diff --git a/mod{at}.py b/mod{at}.py", f"--- a/mod{at}.py", f"+++ b/mod{at}.py"]
        for hunk in range(4):
            values = [f"x{draw.randrange(100)}" for _ in range(8)]
            diff += [f"@@ -{hunk},9 +{hunk},9 @@", *(f" {value}" for value in values), f"-{at} = 1", f"+{at} = {hunk}"]
    diff.insert(53 * 47 + 40, "+max_refund = 900")
    shown = extract_of("\n".join(diff), "What is max_refund now?").text
    assert "diff --git a/mod53.py b/mod53.py" in shown.split("+max_refund = 900")[0].splitlines()


def test_records_are_counted_rather_than_lines():
    rows = [{"id": f"r-{at}", "tags": ["a", {"b": at}], "text": "words " * 20} for at in range(500)]
    stored = offload({"rows": rows}, "list", OffloadSettings(), counter=COUNTER, query="r-77")
    assert "has all 500 records in " in str(stored.response)
    shown = stored.response["rows"]
    assert isinstance(shown, list)
    gaps = re.findall(r"(\d+) records …", " ".join(note for note in shown if isinstance(note, str)))
    assert sum(map(int, gaps)) + sum(isinstance(row, dict) for row in shown) == 500


def test_data_is_described_not_quoted():
    data = base64.b64encode(random.Random(1).randbytes(30_000)).decode()
    prose = "the quick brown fox jumps over the lazy dog " * 900
    for text, kind in (
        (data, "application/octet-stream"),
        (f"data:image/png;base64,{data}", "image/png"),
        ("\0\ufffd" * 5_000, "application/octet-stream"),
        (prose, "text/plain"),
    ):
        stored = offload({"result": text}, "read", OffloadSettings(), counter=COUNTER)
        shown = json.dumps(stored.response)
        assert stored.record.media_type == kind
        assert kind == "text/plain" or (kind in shown and len(shown) < 400), shown


@given(JSON_VALUES, st.data())
def test_any_lines_of_an_outline_are_json(value, data):
    lines = outlined(value)
    chosen = data.draw(st.sets(st.integers(0, len(lines) - 1)))
    json.loads(rendered(lines, chosen))
    assert len(rendered(lines, range(len(lines))).split("\n")) == len(lines)


@given(st.lists(st.fixed_dictionaries({"id": st.integers(), "name": st.text(max_size=40)}), min_size=30, max_size=200))
@settings(max_examples=30)
def test_rows_become_a_table_and_a_table_says_the_same(rows):
    view = lines_view(json.dumps(rows))
    table = json.loads(view.whole)
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]] == rows


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("prefix", ["", '{"total": 9, "page": {"next": "p2"}, "rows": '])
def test_a_very_long_array_stays_json_too(indent, prefix):
    rows = [{"id": f"n{at}", "tags": [{"id": at}], "note": "z" * 40} for at in range(3_000)]
    text = prefix + json.dumps(rows, indent=indent) + ("}" if prefix else "")
    assert len(text) > 50_000
    shown = extract_of(text, "where is n2517", 400)
    value = json.loads(shown.text)
    if prefix:
        assert value["page"] == {"next": "p2"}
    kept = value["rows"] if prefix else value
    shown_ids = [one["id"] for one in kept if isinstance(one, dict)]
    assert {"n0", "n2517", "n2999"} <= {*shown_ids}
    assert len(shown_ids) == len({*shown_ids})
    notes = [one for one in kept if isinstance(one, str)]
    gaps = [re.fullmatch(r"… lines (\d+)-(\d+): (\d+) records …", one) for one in notes]
    assert sum(int(gap[3]) for gap in gaps) + len(kept) - len(notes) == 3_000
    assert COUNTER.count(shown.text) <= 400


@given(JSON_VALUES.filter(lambda value: isinstance(value, (dict, list)) and value), st.data())
@settings(max_examples=50)
def test_json_that_was_cut_off_is_read_as_far_as_it_goes(value, data):
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    cut = text[: data.draw(st.integers(1, len(text)))]
    found = read_json(cut)
    assert found is not None
    assert found[1] == (cut.strip() == text)
    if found[1]:
        assert found[0] == value


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1} {"a": 2}]', "[1 2, 3", '{"a": 1} and more', '{"a": 1}\n{"a": 2}', '{"a": "x" y", "b": 3}',
        "{a: 1}", "{'a': b}", "{'a': 1,\n# not yet\n}",
    ],
)  # fmt: skip
def test_what_is_no_json_is_not_read_up_to_its_fault(text):
    assert read_json(text) is None
    assert read_json(text, as_written=True) is None
    assert "".join(lines_view(text).lines) == text.replace("\n", "")


ROWS = [
    {"id": f"ORD-{at}", "customer": f"Customer {at * 7919 % 10_007}", "total": at + 0.09, "note": None}
    for at in range(600)
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
ASKED_ROW = ("ORD-413", f"Customer {413 * 7919 % 10_007}", "413.09")


@pytest.mark.parametrize(
    "text",
    [
        str(ROWS),
        str([tuple(row.values()) for row in ROWS]),
        json.dumps(COLUMNS),
        json.dumps({name: dict(enumerate(cells)) for name, cells in COLUMNS.items()}),
        "<table>"
        + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row.values())}</tr>" for row in ROWS)
        + "</table>",
        "".join(f"<order>{''.join(f'<{name}>{cell}</{name}>' for name, cell in row.items())}</order>" for row in ROWS),
        "\n".join("- " + "\n  ".join(f"{name}: {cell}" for name, cell in row.items()) for row in ROWS),
        f"The query returned 600 rows:\n{json.dumps(ROWS)}",
        f"{json.dumps(ROWS)}\n\n[the query took 0.31 s]",
        f"Results:\n```json\n{json.dumps(ROWS, indent=2)}\n```\nDone.",
    ],
    ids=[
        "python",
        "tuples",
        "columns",
        "data frame",
        "html",
        "xml",
        "yaml",
        "behind words",
        "before words",
        "in a fence",
    ],
)
def test_of_rows_in_any_writing_the_one_that_is_asked_for_is_whole_and_all_are_counted(text):
    shown = extract_of(text, f"What is the total of {ASKED_ROW[1]}?")
    lines = shown.text.split("\n")
    at = next(at for at, line in enumerate(lines) if ASKED_ROW[1] in line)
    assert all(cell in "\n".join(lines[at - 1 : at + 2]) for cell in ASKED_ROW)
    assert len(ROWS) in (shown.records, shown.total), (shown.records, shown.total)


def test_words_around_json_stay_with_it_and_a_fence_does_not():
    text = f"Found in the archive:\n```json\n{json.dumps(ROWS[:20])}\n```\nEnd of page 1."
    view = lines_view(text)
    assert isinstance(view.value, dict)
    assert (view.value["before"], view.value["after"]) == ("Found in the archive:", "End of page 1.")
    assert lines_view(f"```\n{json.dumps(ROWS[:20])}\n```").value == ROWS[:20]
    prose = f"An order looks like this:\n{json.dumps(ROWS[0])}\n{'It is paid at the gate. ' * 20}"
    assert lines_view(prose).value is None


def test_bullets_of_prose_are_no_records():
    notes = "\n".join(f"- Day {at}: the crane stood still\n  and nobody knew why, it was said" for at in range(300))
    assert extract_of(notes).records == 0


def test_elements_of_many_names_are_cut_in_pieces():
    text = "".join(f"</n{at}><n{at}>{'x ' * 60}" for at in range(3_000))
    lines = lines_view(text).lines
    assert "".join(lines) == text
    assert max(map(len, lines)) <= 200


def test_short_lists_of_one_length_and_columns_of_other_lengths_stay_apart():
    apart = {"users": [f"user {at} of the house" for at in range(20)], "rooms": [f"room {at}" for at in range(20)]}
    longer = {"users": [f"user {at}" for at in range(40)], "rooms": [f"room {at}" for at in range(41)]}
    for value in (apart, longer, {"users": [[at] for at in range(40)], "rooms": [*range(40)]}):
        assert all(line.key != "rows" for line in outlined(value))


def test_no_note_stands_where_one_line_would():
    lines = [f"def part_{at}(value):\n    if value > {at}:\n        raise ValueError({at})\n" for at in range(300)]
    lines[150] = "def settle(book):\n    if book.open:\n        raise PermissionError(book)\n"
    shown = extract_of("\n".join(lines), "When does settle raise a PermissionError?", 300).text
    assert "def settle(book):\n    if book.open:\n        raise PermissionError(book)" in shown
    assert all(int(last or first) > int(first) for first, last in GAP.findall(shown)), shown


WORDS = ("harbour", "crate", "lamp", "roof", "fair", "bread", "river", "dog", "school", "music")


def history():
    """Commits, of which one has another author, as ``git log`` writes them."""
    draw = random.Random(4)
    for at in range(500):
        author = "".join(draw.choices("abcdefgh", k=5)).title()
        yield f"commit {at:040x}\nAuthor: {author} <{author}@ex.org>\nDate:   Mon Mar {1 + at % 28} 10:00:00 2026\n"
        yield f"    {' '.join(draw.choices(WORDS, k=3))}\n"
        if at == 333:
            yield "commit ffff\nAuthor: Quirin Vance <q@ex.org>\nDate:   Tue Mar 17 23:11:09 2026\n"
            yield "    Drop the retry of the ledger sync\n"


def subtitles():
    draw = random.Random(4)
    for at in range(900):
        said = "Captain: the key is under the third oar." if at == 600 else " ".join(draw.choices(WORDS, k=8))
        yield f"{at}\n00:{at // 60:02d}:{at % 60:02d},000 --> 00:{at // 60:02d}:{at % 60:02d},900\n{said}\n"


@pytest.mark.parametrize(
    ("lines", "question", "asked"),
    [
        (history, "Who dropped the retry of the ledger sync?", "Author: Quirin Vance"),
        (subtitles, "Where is the key, and when is it said?", "00:10:00,000"),
    ],
)
def test_an_entry_of_several_lines_is_shown_with_what_is_asked_of_it(lines, question, asked):
    assert asked in extract_of("\n".join(lines()), question, 500).text


def test_the_line_that_an_odd_one_stands_under_is_shown_with_it():
    areas, unused = ("billing", "ledger", "auth", "orders"), "is assigned a value but never used  no-unused-vars"
    draw = random.Random(0)
    files = [f"/srv/src/{draw.choice(areas)}{at}.ts" for at in range(900)]
    lines = [line for at, file in enumerate(files) for line in (file, f"  {at % 90}:5  warning  'x{at}' {unused}", "")]
    lines[1500:1500] = ["/srv/src/ledger.ts", "  41:12  error  'transfre' is not defined  no-undef", ""]
    lines.append("✖ 901 problems (1 error, 900 warnings)")
    assert "/srv/src/ledger.ts\n  41:12  error" in extract_of("\n".join(lines), "Mend what fails.", 400).text


@given(JSON_VALUES)
def test_envelopes_come_off_and_their_text_is_what_the_tool_said(value):
    said = json.dumps(value, indent=1) + " it's"
    inside = json.dumps({"_meta": None, "content": [{"type": "text", "text": said, "annotations": None}]}, indent=2)
    assert decoded(inside) == decoded(said)
    notation = f"meta=None content=[TextContent(type='text', text={inside!r}, annotations=None)] isError=False"
    assert decoded(notation) == decoded(said)
    failed = notation.replace("isError=False", "isError=True")
    assert decoded(failed).endswith("isError=True")


def offloaded(response, tool="t", **changes):
    made = OffloadSettings(**{"extract_tokens": 150, **changes})
    return offload(response, tool, made, counter=COUNTER)


def test_other_fields_of_a_result_stay_word_for_word():
    found = offloaded({"stdout": log(300), "exit_code": 3, "stderr": "warn"})
    assert found.record.form == "extract"
    assert found.response["exit_code"] == 3
    assert found.response["stderr"] == "warn"
    assert found.data.decode() == log(300)
    assert found.response["artifact"].startswith(f"{found.record.uri} has all 300 lines")


@pytest.mark.parametrize(
    "error",
    [
        {"error": "no such file " * 200},
        {"status": "error", "detail": "y " * 900},
        {"result": "Traceback (most recent call last)\n" + "frame\n" * 400},
        {"result": "meta=None content=[TextContent(type='text', text='" + "no " * 500 + "')] isError=True"},
    ],
)
def test_errors_are_never_offloaded_away(error):
    assert offloaded(error).record.form == "verbatim"
    assert offloaded(error, tools={"t": "always"}).record.form == "verbatim"


def test_nothing_is_offloaded_that_would_not_be_cheaper():
    response = {"result": "\n".join(f"unique_{at}_{at * 7919}" for at in range(30))}
    assert offloaded(response, tools={"t": "always"}, extract_tokens=4_000).record.form == "verbatim"


def test_rules_of_single_tools():
    response = {"result": log(300)}
    assert offloaded(response, tools={"t": "whole"}).record.form == "verbatim"
    short = {"result": "\n".join(f"step {at} of the build is done and nothing else is to be said" for at in range(20))}
    assert offloaded(short, extract_tokens=400).record.form == "verbatim"
    assert offloaded(short, tools={"t": "always"}, extract_tokens=40).record.form == "extract"
    register_extractor("first_line", lambda text, *, max_tokens, counter, query: text.split("\n")[0])
    found = offloaded(response, tools={"t": "first_line"})
    assert found.response["result"] == log(1)
    assert found.record.uri in found.response["artifact"]
    with pytest.raises(PolicyError, match="did you mean 'first_line'"):
        offloaded(response, tools={"t": "frist_line"})
    with pytest.raises(PolicyError, match="is a rule"):
        register_extractor("keep", lambda text, *, max_tokens, counter, query: text)


@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=5))
@settings(max_examples=40)
def test_offload_is_a_function_of_its_arguments_and_never_longer(response):
    found, again = offloaded(response, extract_tokens=40), offloaded(dict(response), extract_tokens=40)
    assert found == again
    if found.record.form != "verbatim":
        assert COUNTER.count(canonical_json(dict(found.response))) <= 0.76 * found.record.tokens + 1


def test_a_later_result_of_an_equal_call_supersedes():
    def record(at, digest, arguments="a"):
        return EvidenceRecord(uri=f"artifact://evidence/{digest}.txt", digest=digest, size_bytes=1, source="read",
                              arguments=arguments, time=float(at))  # fmt: skip

    records = [record(1, "d1"), record(2, "d2", "b"), record(3, "d3"), record(4, "d2", "b")]
    assert superseded(records) == {"artifact://evidence/d1.txt": "artifact://evidence/d3.txt"}
    assert len({one.name for one in records}) == 4


def test_a_search_finds_words_as_they_stand_then_by_relevance():
    rows = log(2_000).split("\n")
    rows[700] = "payment 8841 was refused because the card had expired"
    rows[1500] = "PAYMENT gateway answered 503"
    searcher = Searcher(lines_view("\n".join(rows)))
    literal = searcher.search("payment", max_tokens=600, counter=COUNTER)
    assert (literal.how, literal.matches) == ("literal", 2)
    assert rows[700] in "\n".join(one.text for one in literal.passages)
    words = searcher.search("expired card refused", max_tokens=600, counter=COUNTER)
    assert words.how == "words"
    assert rows[700] in words.passages[0].text
    meant = searcher.search("why did the purchase with a credit card fail?", max_tokens=900, counter=COUNTER)
    assert rows[700] in "\n".join(one.text for one in meant.passages)


def long_lines():
    """A line of minified code, one of Chinese and one of digits, each with the words that are found at every place."""
    code = "".join(f"function f{at}(a,b){{return a.v{at}*b}};" for at in range(300))
    chinese = "".join(chr(0x4E00 + at * 37 % 5_000) for at in range(3_000))
    digits = "".join(f"{at * at * 7919 % 100_000:05}" for at in range(1_000))
    return {"code": code, "Chinese": chinese, "digits": digits}


@pytest.mark.parametrize("holder", ["line", "JSON", "JSON in a list"])
@pytest.mark.parametrize("kind", ["code", "Chinese", "digits"])
@pytest.mark.rows(4)
def test_a_search_finds_words_across_the_pieces_of_a_line(kind, holder):
    text = long_lines()[kind]
    holders = {
        "line": f"first line\n{text}\nlast line",
        "JSON": json.dumps({"text": text}, ensure_ascii=False),
        "JSON in a list": json.dumps([{"id": 1, "body": f"{text}\nend"}, {"id": 2}], ensure_ascii=False),
    }
    whole = holders[holder]
    searcher = Searcher(lines_view(whole), embedder="none")
    for start in range(100, len(text) - 600, 61):
        for size in (8, 25, 450):
            query = text[start : start + size]
            found = searcher.search(query, max_tokens=3_000, counter=COUNTER)
            assert found.how == "literal", (start, query)
            assert found.matches <= text.count(query)
            if text.count(query) == 1 and size < 200:
                shown = "".join(row.strip('",') for row in found.passages[0].text.split("\n"))
                assert query in shown


def test_a_search_finds_words_that_stand_in_two_pieces_of_a_line():
    line = "x" * 190 + " alpha " + "y" * 100 + " omega " + "z" * 150
    searcher = Searcher(lines_view(line), embedder="none")
    assert not any("alpha" in piece and "omega" in piece for piece in searcher.view.lines)
    found = searcher.search("omega alpha", max_tokens=1_000, counter=COUNTER)
    assert (found.how, found.matches) == ("words", 1)
    assert "alpha" in found.passages[0].text
    assert "omega" in found.passages[0].text


def test_a_search_finds_nothing_across_two_lines():
    rows = ["a" * 250 + "head", "tail" + "b" * 250]
    for text in ("\n".join(rows), json.dumps({"text": "\n".join(rows)})):
        assert (
            Searcher(lines_view(text), embedder="none").search("headtail", max_tokens=300, counter=COUNTER).how
            != "literal"
        )


def test_of_passages_that_say_the_same_one_is_enough():
    again = [f"{'refund claim was refused for want of papers and seals' * 5}{' ' * at}" for at in range(12)]
    other = "the refund claim of Lund was settled by the board in May, which nobody had expected of it, " * 3
    findings = Searcher(lines_view("\n".join((*again, other))), embedder="none").search(
        "how did the story of that refund claim end, who decided on its papers", max_tokens=300, counter=COUNTER
    )
    texts = [passage.text for passage in findings.passages]
    assert any("settled by the board" in text for text in texts)
    assert "refused" in texts[0]


def test_lines_at_the_ends_of_a_passage_that_are_in_the_request_are_not_shown_again():
    sent = "the claim of Lund was opened in March, by a letter"
    answer = "the board met twice, and Lund got 4711 paid in full, which ended it; " * 2 + "so it is"
    searcher = Searcher(lines_view(f"{sent}\n{answer}\n{sent} to us"), embedder="none")
    alone, beside = (
        searcher.search("outcome of Lund, who got it paid", max_tokens=900, counter=COUNTER, sent_text=text)
        for text in ("", f"{sent} to us")
    )
    assert [passage.text.splitlines() for passage in alone.passages] == [[sent, answer, f"{sent} to us"]]
    assert [passage.text.splitlines() for passage in beside.passages] == [[answer]]


def test_a_passage_of_which_most_is_in_the_request_comes_last():
    sent = [f"the claim of Lund, part {at}, was settled with papers and seals by the whole board" for at in range(3)]
    rest = [f"{'another claim was paid with papers in May, as people say ' * 4}{at}" for at in range(2)]
    findings = Searcher(lines_view("\n".join([*sent, "claim 9", *rest])), embedder="none").search(
        "outcome of Lund, date of its end, who got it paid", max_tokens=900, counter=COUNTER, sent_text="\n".join(sent)
    )
    assert findings.how == "ranked"
    assert len(findings.passages) > 1
    assert sent[0] in findings.passages[-1].text


def test_a_search_that_looks_like_a_pattern_is_literal():
    searcher = Searcher(lines_view(("a" * 300 + "\n") * 200 + "cost (a+)+$ here\n" + log(20)))
    found = searcher.search("(a+)+$", max_tokens=300, counter=COUNTER)
    assert (found.how, found.matches) == ("literal", 1)


def test_a_result_in_the_past_is_found_by_the_call_that_it_answers() -> None:
    rows: list[str] = []
    for number, name in enumerate(["orders", "refunds", "claims", "routes"], 1):
        begin = f"call {number}, 2026-01-01 10:00, "
        rows += [f'{begin}clerk called describe {{"table":"{name}"}}', f"{begin}describe gave fields"]
        rows += [f"  - column: {name[:2]}_{index:02}, kind: text, null: no" for index in range(40)]
    findings = Searcher(lines_view("\n".join(rows))).search("total of claims", max_tokens=600, counter=COUNTER)
    columns = re.findall(r"column: (\w\w)_", "\n".join(passage.text for passage in findings.passages))
    assert columns.count("cl") > 0.8 * len(columns) > 15


# excerpts


TALLY = counter_for("gemini-2.5-flash")
TALLY.count("warm")


def extract(text, *, max_tokens, query=""):
    return shorten(text, max_tokens, counter=TALLY, query=query).text


@given(st.text(max_size=4_000), st.integers(1, 300), st.text(max_size=40))
def test_an_excerpt_never_exceeds_its_budget_nor_its_text(text, budget, query):
    for found in (
        extract(text, max_tokens=budget, query=query),
        shorten_line(text, budget, counter=TALLY, query=query),
    ):
        assert TALLY.count(found) <= budget or len(found) <= 2
        if TALLY.count(text) <= budget:
            assert found == text


def test_an_excerpt_of_an_excerpt_counts_the_lines_of_the_text():
    first = extract("\n".join(f"line {at}: value {at * 7}" for at in range(1, 401)), max_tokens=400)
    second = extract(first, max_tokens=120)
    ranges = [(int(gap[1]), int(gap[2] or gap[1])) for gap in GAP.finditer(second)]
    gone = {at for start, stop in ranges for at in range(start, stop + 1)}
    kept = {int(found) for found in re.findall(r"line (\d+): ", second)}
    assert kept | gone == set(range(1, 401))
    assert not kept & gone


def test_the_names_of_lines_that_are_left_out_find_room_beside_it():
    text = "\n".join(f"part {at} of the report is about account ACC-{at * 37:05} and nothing else" for at in range(60))
    found = shorten(text, 300, counter=TALLY, names=True)
    assert len(set(re.findall(r"ACC-\d+", found.text + found.names))) > found.kept
    assert TALLY.count(found.text) + TALLY.count(found.names) <= 300


def test_a_name_is_not_shown_by_a_longer_one():
    lines = [f"the account ACC-{at}" for at in (1000, 1001, 1002, 1003)]
    text = "\n".join([*lines, *(f"nothing to see here {at}" for at in "abcdefgh" * 40), "it is about ACC-100 as well"])
    found = shorten(text, 60, counter=TALLY, query="account", names=True)
    assert "ACC-1000" in found.text
    assert "ACC-100 " not in found.text
    assert "ACC-100" in found.names.split(", ")


def test_sentences_about_the_query_stand_on_one_line():
    text = "The sky is grey. The kestrel policy is rotated monthly. Nobody was there.\nIt rained."
    found = shorten_line(text, 12, counter=TALLY, query="kestrel policy")
    assert found.strip("… ") == "The kestrel policy is rotated monthly."


def test_a_stop_inside_a_number_or_an_address_ends_no_sentence() -> None:
    text = "Welcome to all of you here. The price is 19.50 at shop.example.com today. So long then."
    found = shorten_line(text, 20, counter=TALLY, query="price")
    assert found == "… The price is 19.50 at shop.example.com today. …"


def test_an_ideographic_stop_needs_no_space_behind_it() -> None:
    text = "欢迎各位来到这里参加会议。价格是十九元五角。今天就到这里再见了各位。"
    assert shorten_line(text, 12, counter=TALLY, query="价格是十九元五角") == "… 价格是十九元五角。 …"
