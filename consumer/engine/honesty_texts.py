"""The prompts of the honesty check: questions, and texts of our own with a question at the end.

The texts are there for the cache. A hybrid model takes a prefix up only from where its state was
kept: at multiples of 64 tokens, of 256 with some architectures, or of the page size; a question
has some 35. So a text has some 350, more than 256 with any tokenizer. No two begin alike, so that
none is served from another's prefix.

A reference of another release is compared by name: a prompt that changes gets another name.
"""

from __future__ import annotations

_HARBOUR = """\
Gulls were the first to know that the ferry had left the island. They rose from the breakwater, \
turned once over the sheds and settled again on the roof of the customs house, where they had a \
view of the whole harbour. Below them the day began as it always did. The baker carried two \
trays across the square, the man who sold newspapers cut the string of his first bundle, and \
the harbour master came down the stone steps with a thermos flask under his arm. His boat was \
painted red, so that it could be seen in fog, and it lay at the end of the shortest pier. He \
unlocked the cabin, wrote the height of the water into a notebook, and looked at the sky for a \
while. There was little wind. Two fishing boats were still out, and the crane on the far side \
was being repaired, which meant that nothing heavy could be unloaded before noon. He wrote that \
down as well. Then he poured himself some coffee, sat on an upturned crate, and waited for the \
ferry to come round the lighthouse. It was late by a quarter of an hour. The people who stood \
at the landing had begun to look at their watches, and a child asked again and again when it \
would come. At last a thin line of smoke showed behind the rocks, then the white bow, and \
everybody picked up their bags. The harbour master closed his notebook and stood up. It was \
going to be a warm day, and a busy one, and he had promised his sister to be home in time for \
supper.
"""
_WORKSHOP = """\
Before a clock is taken apart, a good workshop writes down what it hears. A steady beat tells \
that the escapement is sound, a limp tells that the case does not stand level, and a scraping \
noise tells that something has come loose and touches the pendulum. Only then are the hands \
lifted off, the dial unscrewed, and the movement carried to the bench. Each part is laid on a \
cloth in the order in which it came out, so that it can go back in the opposite order. The \
springs are let down slowly, since a spring that is freed at once can break a tooth, or a \
finger. Old oil is brown and sticky. It is washed away with spirit, and the pivots are polished \
until they shine. Worn holes are filled with new brass and drilled again, each to the size of \
its own pivot and no wider. Then comes the part that takes patience. The plates are closed over \
the wheels, and every pivot has to find its hole while the others stay in theirs. Nobody should \
use force here. A light tap on the bench is enough, and if it is not, the plate comes off and \
the work begins anew. When all wheels turn freely, a drop of fresh oil goes to each bearing, \
the dial is put on, and the clock hangs on the test wall for a week. Its error is noted every \
morning on a small card. A clock that gains is made slower by lowering the bob, one turn of the \
nut at a time, and one that loses is made faster by raising it. After that it may go home to \
its owner.
"""

# The first two leave a language model hardly a choice, the last one does.
QUESTIONS: dict[str, str] = {
    text: text
    for text in (
        "Repeat this line and nothing else: one two three four five six seven eight",
        "Continue the list: Monday, Tuesday, Wednesday, Thursday,",
        "What is the capital of France?",
    )
}
TEXTS: dict[str, str] = {
    "Harbour. Which colour was the harbour master's boat?": (
        f"{_HARBOUR}\nIn the text above, which colour was the harbour master's boat painted?"
    ),
    "Workshop. Repeat this line: one two three four five six seven eight": (
        f"{_WORKSHOP}\nForget the text above. Repeat this line and nothing else:"
        " one two three four five six seven eight"
    ),
}
