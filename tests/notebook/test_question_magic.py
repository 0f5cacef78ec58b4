"""%question in a real kernel: what it shows, how it judges, and what is kept when the kernel is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.notebook.questions.markdown import as_html

WIDGET = "application/vnd.jupyter.widget-view+json"


def attempts(outputs: Any) -> list[dict[str, Any]]:
    """Successive states of the widget's attempt."""
    states = [c["data"].get("state", {}) for kind, c in outputs.messages if kind in ("comm_open", "comm_msg")]
    return [state["attempt"] for state in states if "attempt" in state]


def test_a_question_is_text_for_readers_and_a_widget_for_learners(kernel):
    text, widget = kernel.run("%question tree_rounds").displays
    assert text["text/markdown"].startswith("**a** In how many rounds does a tree all-reduce")
    assert text["text/plain"] == text["text/markdown"]
    assert WIDGET in widget
    assert widget["text/plain"] == "*To answer, run this cell, or `%question tree_rounds NUMBER`.*"
    (_, widget) = kernel.run("%question held_in_backward").displays
    assert "2. the inputs of all layers, and the activations of one\n" in widget["text/markdown"]


def test_an_answer_on_the_line_is_judged_and_kept_for_the_widget(kernel):
    (reply,) = kernel.run("%question tree_rounds 2 * 9").displays
    assert reply["text/markdown"].startswith("**Not yet**: 18. Nine levels are enough for 512 ranks only.")
    (reply,) = kernel.run("%question tree_rounds 3,5").displays
    assert "That is not a number: 3,5" in reply["text/plain"]
    (reply,) = kernel.run("%question tree_rounds 2 * 10").displays
    assert reply["text/markdown"].startswith("**Right**: 20.")

    shown = kernel.run("%question tree_rounds")
    assert attempts(shown)[0] == {
        "count": 1,
        "given": "2 * 10",
        "verdict": "right",
        "html": as_html(reply["text/markdown"]),
        "mayReveal": False,
    }
    assert shown.displays[1]["text/plain"].startswith("*To answer"), "what is compared between runs does not change"
    assert kernel.run("from labkit.questions import answered\nanswered('tree_rounds')").result == "20.0"
    folder = Path(kernel.run("import os\nprint(os.environ['LABKIT_WORKSPACE'])").stdout.strip())
    progress = json.loads((folder / ".progress/phase1_data_parallel/collectives.json").read_text())
    assert progress["answers"]["tree_rounds"]["tries"] == 2 and progress["answers"]["tree_rounds"]["right"]


def test_the_answer_uses_the_notebooks_variables(kernel):
    assert "needs `mine64` from an earlier cell" in kernel.run("%question ring_rounds 126").displays[0]["text/plain"]
    kernel.run("class Trace:\n    def messages_sent(self, rank):\n        print('counting')\n        return 126")
    kernel.run("class Ran:\n    trace = Trace()\nmine64 = Ran()")
    outputs = kernel.run("%question ring_rounds 126")
    assert outputs.displays[0]["text/plain"].startswith("**Right**: 126.")
    assert outputs.stdout == ""


def test_the_answer_is_shown_after_some_tries(kernel):
    assert kernel.run("%question crossing --reveal").displays[0]["text/plain"] == "Try 3 more times first."
    kernel.run("class Trace:\n    def of(self):\n        return []\nclass Ran:\n    trace = Trace()\nmine64 = Ran()")
    for given in (64, 56, 7):
        assert "Not yet" in kernel.run(f"%question crossing {given}").displays[0]["text/plain"]
    assert attempts(kernel.run("%question crossing"))[0]["mayReveal"]
    assert "The answer is 0, from `8`" in kernel.run("%question crossing --reveal").displays[0]["text/plain"]


def test_an_unknown_question_is_answered_with_near_ones(kernel):
    refusal = "UsageError: no question is called 'tree_round'; did you mean tree_rounds"
    assert kernel.run("%question tree_round").stderr.startswith(refusal)
    assert "tree_rounds" in kernel.complete("%question tree_")


def test_texts_become_html_with_everything_that_was_typed_escaped():
    assert as_html("**Not yet**: `a<b` and *x* & 2 * 3 * 4\n\n<img>") == (
        "<p><strong>Not yet</strong>: <code>a&lt;b</code> and <em>x</em> &amp; 2 * 3 * 4</p><p>&lt;img&gt;</p>"
    )
