import json
import math

import pytest

from fullstride.train.state import State


def test_a_state_with_a_loss_that_is_not_a_number_is_plain_json_and_comes_back():
    state = State(step=3, micro=1, micro_losses=[0.1], step_losses=[math.nan, math.inf], best={"loss": -math.inf})
    text = json.dumps(state.document(), allow_nan=False)
    back = State.from_document(json.loads(text, parse_constant=pytest.fail))
    assert str(back) == str(state)  # NaN is not equal to itself
