"""How far a compaction is, so that whoever comes after a crash knows whose the topics are that lie about.

    nothing   no compaction is under way; a topic of the work topic's name is somebody else's
    begun     the work topic is about to be made, or is there and empty
    writing   the work topic has this id; until the swap, which gives both topics new ones
    done      as nothing, and noted as nothing: the name is forgotten

Each is one mark of the step `compact:<topic>`, under the next epoch: a note is there wholly or not at all. The server
forgets a note older than its step_expiration_ms; then the work topic of an attempt that died is somebody else's.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from penstock.model.errors import TopicExists, UnknownTopic
from penstock.pipeline.jobs.desk import Desk, TopicFacts
from penstock.pipeline.jobs.step_notes import forget, marks_of
from penstock.wire.native import messages as wire

BEGUN: Final = "begun"
WRITING: Final = "writing"
DONE: Final = "done"


@dataclass(frozen=True)
class State:
    stage: str
    work: str = ""  # the name of the work topic
    keep: bool = False  # the old topic stays, under that name
    topic_id: str = ""
    work_id: str = ""


def note_step(topic: str) -> str:
    return f"compact:{topic}"


def read_state(desk: Desk, topic: str) -> State:
    marks = marks_of(desk, note_step(topic))
    return State(**json.loads(marks[-1][1])) if marks else State(DONE)


def write_state(desk: Desk, topic: str, state: State) -> None:
    if state.stage == DONE:
        forget(desk, note_step(topic))
        return
    marks = marks_of(desk, note_step(topic))
    epoch = marks[-1][0] + 1 if marks else 0
    desk.ask(wire.CommitStep(note_step(topic), epoch, [], json.dumps(asdict(state), separators=(",", ":"))))


def recover(desk: Desk, topic: TopicFacts, work_name: str) -> bool:
    """Clear away what an attempt that died has left. True: it had swapped, and only its end was missing."""
    state = read_state(desk, topic.name)
    if state.stage == DONE:
        if desk.find(work_name) is not None:
            raise TopicExists(
                f"there is a topic {work_name!r} already: delete it, or choose another name to keep the old one as"
            )
        return False
    work = desk.find(state.work)
    swapped = False
    if work is not None:
        if _is_ours(desk, state, work):
            remove_topic(desk, state.work)
        elif topic.topic_id != state.topic_id:
            swapped = True
            if not state.keep:
                remove_topic(desk, state.work)
        else:
            raise TopicExists(
                f"a compaction of {topic.name!r} was cut short, and its work topic {state.work!r} is not the one that "
                "it made: delete that topic, or rename what should stay"
            )
    forget(desk, data_step(topic.name, state.work_id))
    write_state(desk, topic.name, State(DONE))
    return swapped


def _is_ours(desk: Desk, state: State, work: TopicFacts) -> bool:
    """Nothing but the work topic of an attempt that did not come to the swap."""
    if state.stage == WRITING:
        return work.topic_id == state.work_id
    return all(bound.end == 0 for bound in desk.bounds(work))


def data_step(topic: str, work_id: str) -> str:
    """The step that records are written under: another one for each attempt."""
    return f"compact:{topic}:{work_id}"


def remove_topic(desk: Desk, name: str) -> None:
    try:
        desk.ask(wire.DeleteTopic(name))
    except UnknownTopic:
        return  # an answer was lost, and it was asked again
