"""The checker of transaction histories finds every kind of fault that it is there for, and no other."""

import pytest
from transaction_history import ABORTED, COMMITTED, History, Input, Output, Seen, check, kinds


@pytest.fixture
def history() -> History:
    """Four inputs in two attempts that count, with an aborted attempt and one of a killed worker between them."""
    made = History(copies=2, inputs={0: 4}, committed={0: 4})
    made.attempts = {
        "a1": [Input(0, 0), Input(0, 1)],
        "a2": [Input(0, 2)],
        "a3": [Input(0, 2), Input(0, 3)],
        "a4": [Input(0, 2), Input(0, 3)],
    }
    made.outcomes = {"a1": COMMITTED, "a2": ABORTED}
    offset = 0
    for attempt in ("a1", "a4"):  # of a4 nobody was told, and yet it counts
        for output in made.outputs_of(attempt):
            made.seen.append(Seen(output, (f"out-{output.copy}", 0, offset)))
            offset += 1
    return made


def see(history: History, output: Output) -> None:
    history.seen.append(Seen(output, (f"out-{output.copy}", 0, 100)))


def unsee(history: History, *outputs: Output) -> None:
    history.seen = [seen for seen in history.seen if seen.output not in outputs]


def test_a_history_as_it_should_be_has_no_fault(history: History) -> None:
    assert check(history) == []


def test_inputs_that_nobody_has_passed_yet_are_not_lost(history: History) -> None:
    history.inputs[0] = 10
    assert check(history) == []


def test_an_input_that_was_passed_without_output_is_lost(history: History) -> None:
    unsee(history, *history.outputs_of("a4"))
    assert kinds(check(history)) == {"lost"}


def test_a_partition_that_was_never_read_and_is_passed_is_lost(history: History) -> None:
    history.inputs[1] = history.committed[1] = 1
    assert kinds(check(history)) == {"lost"}


def test_outputs_of_a_commit_that_was_reported_and_are_not_there_are_lost(history: History) -> None:
    unsee(history, *history.outputs_of("a4"))
    history.committed[0] = 2
    assert check(history) == []
    history.outcomes["a4"] = COMMITTED
    assert kinds(check(history)) == {"lost"}


def test_half_a_transaction_is_torn(history: History) -> None:
    unsee(history, Output("a4", Input(0, 3), 1))
    assert kinds(check(history)) == {"torn"}


def test_outputs_without_their_offsets_are_torn(history: History) -> None:
    history.committed[0] = 3
    assert kinds(check(history)) == {"torn"}


def test_what_was_aborted_and_is_read_all_the_same_is_found(history: History) -> None:
    for output in history.outputs_of("a2"):
        see(history, output)
    assert {"aborted", "doubled"} <= kinds(check(history))


def test_one_input_in_two_attempts_is_doubled(history: History) -> None:
    for output in history.outputs_of("a3"):
        see(history, output)
    assert "doubled" in kinds(check(history))
    assert "aborted" not in kinds(check(history))


def test_one_record_stored_twice_is_doubled(history: History) -> None:
    see(history, Output("a4", Input(0, 3), 0))
    assert kinds(check(history)) == {"doubled"}


def test_outputs_out_of_order_are_found(history: History) -> None:
    first, second = (seen for seen in history.seen if seen.output.attempt == "a1" and seen.output.copy == 0)
    history.seen.remove(first)
    history.seen.remove(second)
    history.seen += [Seen(second.output, first.place), Seen(first.output, second.place)]
    assert kinds(check(history)) == {"disordered"}


def test_what_nobody_wrote_is_invented(history: History) -> None:
    see(history, Output("a9", Input(0, 3), 0))
    assert "invented" in kinds(check(history))
