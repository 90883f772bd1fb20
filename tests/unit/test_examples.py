"""What is learned: every token that the model said, once, after what it saw then."""

from common.examples import examples_of


def test_one_turn_is_learned_after_its_prompt():
    (one,) = examples_of([([1, 2], [3, 4, 5])])
    assert (one.input_ids, one.loss_mask) == ([1, 2, 3, 4, 5], [0, 0, 1, 1, 1])


def test_turns_whose_prompts_go_on_are_one_example_with_each_turn_masked_in():
    (one,) = examples_of([([1], [2]), ([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7])])
    assert one.input_ids == [1, 2, 3, 4, 5, 6, 7]
    assert one.loss_mask == [0, 1, 0, 1, 1, 0, 1]


def test_a_turn_whose_prompt_lacks_an_earlier_thought_is_an_example_of_its_own():
    first, second = examples_of([([1], [90, 91, 2]), ([1, 2, 3], [90, 4])])
    assert (first.input_ids, first.loss_mask) == ([1, 90, 91, 2], [0, 1, 1, 1])
    assert (second.input_ids, second.loss_mask) == ([1, 2, 3, 90, 4], [0, 0, 0, 1, 1])


def test_a_turn_without_a_word_gives_nothing():
    assert examples_of([([1, 2], [])]) == []
    (one,) = examples_of([([1], []), ([1, 2], [3])])
    assert one.loss_mask == [0, 0, 1]


def test_a_cut_keeps_the_beginning_and_the_source_is_not_touched():
    seen, said = [1, 2], [3, 4]
    (one,) = examples_of([(seen, said)])
    assert one.cut(3).input_ids == [1, 2, 3]
    assert one.cut(2).learned_tokens == 0
    examples_of([(seen, said), ([1, 2, 3, 4, 5], [6])])
    assert (seen, said) == ([1, 2], [3, 4])
