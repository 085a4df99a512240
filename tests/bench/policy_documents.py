"""Writes a judged set of company rules in the form that `search_sets.py` reads: long texts, many of them nearly alike.

    python tests/bench/policy_documents.py FOLDER [--seed N]

For each of 24 subjects there are a general rule, versions of it for six countries and two years, and a list of
exceptions. They share most of their clauses. A question names a subject in other words, mostly a country, sometimes a
year and somebody's circumstances. It needs the version of that country (grade 3; of the year it names, else the later
one), the exceptions (2) and the general rule (1); versions of other countries are of no use.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SUBJECTS = {
    "annual leave": ("How many vacation days do I get", "days off"),
    "parental leave": ("How long may I stay at home after my child is born", "weeks at home"),
    "sick pay": ("Do I keep my salary when I am ill", "weeks of full salary"),
    "remote work": ("How often am I allowed to work from home", "days a week at home"),
    "overtime": ("What do I get for extra hours at night", "hours a month"),
    "business travel": ("Which class may I fly for a customer visit", "hours of flight"),
    "travel expenses": ("How much may a hotel night cost", "euros a night"),
    "equipment": ("When is my laptop replaced", "months of use"),
    "training budget": ("Who pays for a course I want to take", "euros a year"),
    "notice period": ("How early do I have to say that I quit", "weeks of notice"),
    "probation": ("How long am I on trial as a new colleague", "months"),
    "company car": ("May I drive privately with the car of the firm", "kilometres a year"),
    "data retention": ("When are customer records erased", "months of storage"),
    "access rights": ("Who lets a contractor into the billing system", "days until a review"),
    "incident reports": ("How fast must a leak be reported", "hours"),
    "gifts": ("Can I accept a present from a supplier", "euros a gift"),
    "side jobs": ("May I earn money with another job", "hours a week"),
    "public statements": ("May I talk to a journalist about us", "days before approval"),
    "procurement": ("From what amount do I need three offers", "euros an order"),
    "refunds": ("Until when can a customer send something back", "days after delivery"),
    "warranty": ("How long do we repair a device without charge", "months"),
    "shift swaps": ("Can two colleagues change their shifts", "hours before the shift"),
    "accidents": ("What do I do after somebody was hurt", "hours until the form"),
    "pension": ("What does the firm add to my retirement savings", "percent of the salary"),
}
COUNTRIES = ("Germany", "France", "Poland", "Spain", "Ireland", "Norway")
YEARS = (2023, 2025)
CLAUSES = (
    "This rule binds all employees, and managers see to it that it is known in their teams.",
    "Questions are answered by the people department, which keeps the only valid copy of this document.",
    "Where a collective agreement or a law is more favourable, that agreement or that law applies instead.",
    "Requests are made in the portal, with the reason, the period and the name of the manager who decides.",
    "A decision is given within five working days; silence is not consent and a refusal names its reason.",
    "Whoever disagrees may ask the works council to look at the decision, without fear of any disadvantage.",
    "Amounts are before tax, periods count in calendar days unless stated otherwise, and halves are rounded up.",
    "Breaches are first talked about, then noted, and only where they go on lead to a formal warning.",
    "Managers report once a year how often the rule was used, by team, age and contract, without any names.",
    "Earlier versions stay in the archive and apply to all that began before this version came into force.",
    "Contractors, interns and people on loan are covered only where a sentence of this document names them.",
    "The document is reviewed every two years, and earlier where the law of a country changes.",
)
CIRCUMSTANCES = ("an intern", "a part-time colleague", "a contractor", "somebody with a disability", "a team lead")


def document(chance: random.Random, title: str, facts: list[str]) -> dict[str, str]:
    clauses = chance.sample(CLAUSES, 9)
    for fact in facts:
        clauses.insert(chance.randrange(2, len(clauses)), fact)
    return {"title": title, "text": " ".join(clauses)}


def generate(seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]], list[tuple[str, str, int]]]:
    """Documents, questions, and which of them answer which, by grade."""
    chance = random.Random(seed)
    documents, queries, judged = list[dict[str, str]](), list[dict[str, str]](), list[tuple[str, str, int]]()
    for number, (subject, (question, unit)) in enumerate(SUBJECTS.items()):
        general, exceptions = f"d{number}", f"d{number}-exceptions"
        facts = [f"For {subject} the group grants {chance.randrange(5, 60)} {unit} unless a country has its own rule."]
        documents.append({"_id": general, **document(chance, f"Group rule on {subject}", facts)})
        facts = [f"For {who} {subject} ends at {chance.randrange(2, 40)} {unit}." for who in CIRCUMSTANCES]
        documents.append({"_id": exceptions, **document(chance, f"Exceptions to the rule on {subject}", facts)})
        for country in COUNTRIES:
            for year in YEARS:
                facts = [
                    f"In {country} {subject} comes to {chance.randrange(5, 60)} {unit} from January {year} on.",
                    f"The works council of {country} agreed to this version in the autumn of {year - 1}.",
                ]
                name = f"d{number}-{country.lower()}-{year}"
                documents.append({"_id": name, **document(chance, f"{subject.capitalize()}, {country}, {year}", facts)})
        for country in chance.sample(COUNTRIES, 3):
            year, who = chance.choice([None, *YEARS]), chance.choice(CIRCUMSTANCES)
            since = f" under the rule of {year}" if year else ""
            text = f"{question} in {country}{since}, and does it hold for {who}?"
            query = f"q{len(queries)}"
            queries.append({"_id": query, "text": text})
            grades = {f"d{number}-{country.lower()}-{year or YEARS[-1]}": 3, exceptions: 2, general: 1}
            judged += [(query, name, grade) for name, grade in grades.items()]
    return documents, queries, judged


def write(folder: Path, seed: int) -> None:
    """Writes the three files of the set."""
    folder.mkdir(parents=True, exist_ok=True)
    documents, queries, judged = generate(seed)
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    lines = "".join("\t".join(map(str, row)) + "\n" for row in [("query-id", "corpus-id", "score"), *judged])
    (folder / "qrels.tsv").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write(given.folder, given.seed)
