"""Of a long list of records the model reads each record, with what tells it from the others."""

import json
from typing import Any

import pytest

from aether_context.evidence import offload
from aether_context.policy import OffloadSettings
from aether_context.text.digest import digest
from aether_context.text.json_lines import outlined
from aether_context.text.shorten import shorten
from aether_context.tokens import counter_for


def _product(number: int, **more: Any) -> dict[str, Any]:
    """A record as shops give it: most of its fields are empty, the same in all, or said twice."""
    name = f"Lamp model {number}"
    return {
        "id": 700 + number,
        "name": name,
        "slug": name.lower().replace(" ", "-"),
        "permalink": f"https://shop.example/{'very/' * 12}product/{number}/",
        "type": "simple",
        **{f"option_{at}": None for at in range(30)},
        "sku": f"LAMP-{number:03}-X",
        "stock": 3 * number,
        "_links": {
            "self": [{"href": f"https://shop.example/api/products/{number}", "targetHints": {"allow": ["GET"]}}]
        },
        "meta_data": [{"id": 1, "key": "supplier_code", "value": f"SUP{number:03}"}, {"key": "colour", "value": "red"}],
        **more,
    }


def _shown(text: str, query: str = "", extract_tokens: int = 800) -> dict[str, Any]:
    settings = OffloadSettings(extract_tokens=extract_tokens)
    return dict(
        offload({"result": text}, "list", settings, counter=counter_for("gemini-2.5-flash"), query=query).response
    )


def _records(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return [record for record in json.loads(shown["result"]) if isinstance(record, dict)]


def test_every_record_is_named() -> None:
    shown = _shown(json.dumps([_product(number) for number in range(14)], indent=2))
    records = _records(shown)
    assert [record["name"] for record in records] == [f"Lamp model {number}" for number in range(14)]
    assert records[3] == {"id": 703, "name": "Lamp model 3", "sku": "LAMP-003-X", "stock": 9, "supplier_code": "SUP003"}
    assert "14 records" in shown["artifact"]
    assert "_links.self.href" in shown["also_mentions"]  # a field that is left out is named


def test_what_the_call_asks_for_comes_first() -> None:
    products = [_product(number, tax_class=f"class {number % 3} of seven") for number in range(14)]
    assert "tax_class" not in _records(_shown(json.dumps(products), extract_tokens=500))[0]
    assert (
        _records(_shown(json.dumps(products), "which tax_class has lamp 5?", 500))[5]["tax_class"] == "class 2 of seven"
    )


def test_records_without_room_leave_a_note_with_the_lines_of_the_stored_text() -> None:
    shown = _shown(json.dumps({"page": 1, "items": [_product(number) for number in range(400)]}), extract_tokens=300)
    value = json.loads(shown["result"])
    assert (value["page"], value["items"][0]["id"], value["items"][-1]["id"]) == (1, 700, 1099)
    (note,) = (item for item in value["items"] if isinstance(item, str) and int(item.split()[-3]) > 100)
    first, last = map(int, note.split()[2].rstrip(":").split("-"))
    assert (last - first + 1) % int(note.split()[-3]) == 0


@pytest.mark.parametrize(
    "records",
    [
        [{"id": number, "text": f"Sentence {number} of a page. " * 30} for number in range(20)],
        [{"id": number, "size": number * 7, "kind": "row"} for number in range(400)],
    ],
    ids=["prose", "table"],
)
def test_prose_and_tables_stay_what_they_are(records: list[dict[str, Any]]) -> None:
    shown = _shown(json.dumps(records))["result"]
    assert "Sentence 0 of a page." in shown or '"columns":["id","size","kind"]' in shown


def test_values_of_lists_and_of_odd_records() -> None:
    tasks = [
        {"task": {"id": f"T-{number}"}, "owners": [{"name": "Ana"}, {"name": f"Bo {number}"}], **_product(number)}
        for number in range(12)
    ]
    tasks[7]["failure"] = "E4711 no lamp"
    records = _records(_shown(json.dumps(tasks), "the failure of tasks and their owners"))
    assert (records[7]["failure"], records[4]["owners.name"]) == ("E4711 no lamp", "Ana, Bo 4")


@pytest.mark.parametrize("extract_tokens", [300, 800, 2_000])
def test_the_one_record_of_a_log_with_a_stack_trace_says_what_that_ends_in(extract_tokens: int) -> None:
    steps = "".join(f'  File "/srv/step{at}.py", line {at}, in step\n    return step({at})\n' for at in range(60))
    error = "ledger.RowLocked: row 8841 is held by pid 5517"
    log = [{"at": at * 7, "level": "info", "msg": f"job {at} of the queue is done"} for at in range(300)]
    log[101] |= {
        "level": "error",
        "msg": "transfer failed",
        "exc": f"Traceback (most recent call last):\n{steps}{error}",
    }
    records = _records(_shown(json.dumps(log), "Why did the transfer fail?", extract_tokens))
    assert [record["exc"] for record in records if record.get("level") == "error"] == [error]


def test_a_quote_that_nobody_escaped() -> None:
    text = json.dumps([_product(number) for number in range(14)], indent=2)
    shown = _shown(text.replace('"Lamp model 9"', '"Lamp model 9, 65" wide"'))
    assert len(_records(shown)) == 14
    assert _records(shown)[9]["name"] == 'Lamp model 9, 65" wide'


def test_an_item_that_was_cut_off_is_read_in_its_own_lines() -> None:
    page = "\n".join(f'Row {number} costs {number * 3} EUR "net"' for number in range(2000))
    item = json.dumps({"type": "text", "text": page})
    for cut in (30_000, 30_001, 30_002, 30_003):
        shown = _shown(f"{item[:cut]} ...\n\n(too long: 60,000 characters are in /tmp/rows.json)")["result"]
        assert 'Row 0 costs 0 EUR "net"\nRow 1 costs' in shown
        assert "/tmp/rows.json" in shown


def test_the_records_that_are_shown_are_those_of_their_own_list() -> None:
    rows = [[f"first {number}", "x" * 250, "y" * 240, number] for number in range(30)]
    value = {"first": rows, "other": [{"id": number, "of": {"size": 7 * number}} for number in range(30)]}
    shown = json.loads(_shown(json.dumps(value))["result"])
    assert shown["first"][0][0] == "first 0"


def test_signs_tell_records_from_each_other() -> None:
    marks = [{"is_done": "✅" if number % 3 else "❌", "change": number % 2 or -1} for number in range(14)]
    records = _records(_shown(json.dumps([_product(number, **mark) for number, mark in enumerate(marks)])))
    assert [{name: record[name] for name in marks[0]} for record in records] == marks


def test_a_list_with_all_its_records_and_fewer_fields_is_not_whole() -> None:
    values = [{"id": at, "name": f"Lamp {at}", "of": {"kind": "x" * 60}, "page": f"x://y/{at}"} for at in range(40)]
    extract = shorten(json.dumps(values), 1_100, counter=counter_for(""))
    assert extract.text.count('"Lamp ') == 40
    assert not extract.is_whole


def test_of_very_many_fields_the_usual_ones_are_looked_at() -> None:
    value = [{f"k{field}": field + number for field in range(2_000)} for number in range(3)]
    whole = outlined(value)
    begins = [at for at, line in enumerate(whole) if line.text == "{"]
    found = digest(value, whole, begins, max_tokens=800, counter=counter_for(""), query="")
    assert found is not None
    assert len(found.left_out_fields) < 1_000


def _machine(number: int, **more: Any) -> dict[str, Any]:
    """A record as clouds give it: its name is a tag among others."""
    return {
        "MachineId": f"m-{number * 7919:08x}",
        "MachineType": ("small", "large")[number % 2],
        "Owner": f"owner {number % 7}",
        "State": {"Code": 16, "Name": "running"},
        "Address": f"10.1.{number % 200}.7",
        "Tags": [{"Label": "Name", "Text": f"worker-{number}"}, {"Label": "team", "Text": "harbour"}],
        "Ports": {"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(8_000 + number)}]},
        **more,
    }


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("What is the state of ledger-writer?", ("ledger-writer", "stopped")),
        ("On which host port is machine m-000d5db1?", ("m-000d5db1", "4417")),
    ],
)
def test_the_fields_that_name_a_record_and_what_is_asked_of_it_are_shown(query: str, wanted: tuple[str, ...]) -> None:
    machines = [_machine(number) for number in range(160)]
    machines[110] |= {
        "MachineId": "m-000d5db1",
        "State": {"Code": 80, "Name": "stopped"},
        "Tags": [{"Label": "Name", "Text": "ledger-writer"}, {"Label": "team", "Text": "quay"}],
        "Ports": {"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": "4417"}]},
    }
    shown = _shown(json.dumps({"Machines": machines}), query)["result"]
    assert any(all(word in line for word in wanted) for line in shown.splitlines()), shown
